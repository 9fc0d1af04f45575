"""Handles: a device, and the stream that work is queued on."""

import ctypes
from functools import cache

from heddle._checks import whole
from heddle._library import call
from heddle.cudnn._errors import translated

DEVICES = ("cpu", "cuda")  # in the order of the library's numbers


class Handle:
    """Where graphs run: "cpu" or "cuda", and a CUstream's number (0: the default one)."""

    __slots__ = ("destroyed", "device", "stream")

    def __init__(self, device: str) -> None:
        self.device, self.stream, self.destroyed = device, 0, False

    def __repr__(self):
        return f"<cudnn handle of {self.device}>"


@cache
def missing_gpu():
    """Why there is no NVIDIA GPU; None where there is one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as missing:
        return str(missing)
    count = ctypes.c_int()
    failure = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if failure:
        return f"CUDA error {failure}"
    return None if count.value else "the driver reports no device"


def default_device():
    """Where HEDDLE_DEVICE says, else a GPU where there is one, else the CPU."""
    device = ctypes.c_int()
    with translated():
        call("heddle_default_device", ctypes.byref(device))
    return DEVICES[device.value]


def create_handle(device: str | None = None) -> Handle:
    """A handle of "cuda" or "cpu"; where nothing is said of the one that HEDDLE_DEVICE names, else of the GPU if there is one.

    Raises RuntimeError for "cuda" where there is no NVIDIA GPU.
    """
    if device is None:
        return Handle(default_device())
    if not isinstance(device, str):
        raise TypeError(f"device is of type {type(device).__name__}, expected a str, one of {', '.join(DEVICES)}.")
    if device not in DEVICES:
        raise ValueError(f"There is no device {device!r}, expected one of {', '.join(DEVICES)}.")
    if device == "cuda" and missing_gpu():
        raise RuntimeError(f"There is no NVIDIA GPU for a handle: {missing_gpu()}.")
    return Handle(device)


def checked(handle):
    if not isinstance(handle, Handle):
        raise TypeError(f"handle is of type {type(handle).__name__}, expected what cudnn.create_handle gives.")
    if handle.destroyed:
        raise ValueError("The handle has been destroyed, expected one that is alive.")
    return handle


def destroy_handle(handle: Handle) -> None:
    """Ends the handle: no call takes it afterwards. What it queued runs on."""
    checked(handle).destroyed = True


def set_stream(handle: Handle, stream: int) -> None:
    """What is executed with the handle from now on is queued on this CUstream, given by its number."""
    checked(handle)
    stream = whole("stream", getattr(stream, "cuda_stream", stream))
    if stream < 0:
        raise ValueError(f"stream is {stream}, expected a CUstream's number, not below 0.")
    handle.stream = stream


def get_stream(handle: Handle) -> int:
    """The number of the CUstream that set_stream gave; 0 before."""
    return checked(handle).stream
