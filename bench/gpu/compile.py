"""Device sources to cubins through NVRTC, many at once."""

import concurrent.futures
import ctypes as ct
import glob
import os
import pathlib
import re
import sys
import time

KERNELS = pathlib.Path(os.environ.get(
    "HEDDLE_KERNELS", pathlib.Path(__file__).resolve().parents[2] / "kernels"))
_library = None


def _nvrtc():
    global _library
    if _library is None:
        places = [os.environ.get("HEDDLE_NVRTC", ""), "libnvrtc.so.13", "libnvrtc.so.12"]
        for folder in sys.path:
            places += glob.glob(f"{folder}/nvidia/*/lib/libnvrtc.so.1?")
        for place in filter(None, places):
            try:
                _library = ct.CDLL(place)
                break
            except OSError:
                continue
        else:
            raise RuntimeError("libnvrtc not found; set HEDDLE_NVRTC to its path")
    return _library


def compile_one(source: str) -> tuple[bytes, str, float]:
    """The cubin, ptxas's report and the seconds taken. Raises with the log if it does not compile."""
    nvrtc = _nvrtc()
    program = ct.c_void_p()
    nvrtc.nvrtcCreateProgram(ct.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    options = [b"--gpu-architecture=sm_90a", b"-std=c++20", b"--ptxas-options=-v",
               f"--include-path={KERNELS}".encode()]
    start = time.time()
    code = nvrtc.nvrtcCompileProgram(program, len(options), (ct.c_char_p * len(options))(*options))
    seconds = time.time() - start
    size = ct.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ct.byref(size))
    log = ct.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.value.decode()
    if code != 0:
        raise RuntimeError(text)
    nvrtc.nvrtcGetCUBINSize(program, ct.byref(size))
    cubin = ct.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(ct.byref(program))
    return cubin.raw, text, seconds


def flaws(report: str) -> list[str]:
    """What must not be in ptxas's report: stack frames, spills, serialised products."""
    found = re.findall(r"[1-9]\d* bytes (?:stack frame|spill stores|spill loads)", report)
    return found + re.findall(r"C75\d\d[^\n]*", report)


def compile_all(sources: dict, workers: int | None = None) -> dict:
    """name -> (cubin, report, seconds) or the RuntimeError, in parallel processes."""
    with concurrent.futures.ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        futures = {name: pool.submit(compile_one, source) for name, source in sources.items()}
        results = {}
        for name, future in futures.items():
            try:
                results[name] = future.result()
            except RuntimeError as error:
                results[name] = error
        return results
