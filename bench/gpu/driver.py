"""The CUDA driver through ctypes, for kernels that are measured without the library."""

import ctypes as ct

_cuda = ct.CDLL("libcuda.so.1")


def check(code, what):
    if code != 0:
        text = ct.c_char_p()
        _cuda.cuGetErrorString(code, ct.byref(text))
        raise RuntimeError(f"{what}: {text.value.decode() if text.value else code}")
