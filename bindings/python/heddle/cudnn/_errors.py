"""Failures as the frontend's programs know them."""

from contextlib import contextmanager

from heddle._library import Error, load

_DECLINED = {"GRAPH_NOT_SUPPORTED", "GRAPH_EXECUTION_PLAN_CREATION_FAILED", "HEURISTIC_QUERY_FAILED",
             "UNSUPPORTED_GRAPH_FORMAT"}
_AT_RUN_TIME = {"GRAPH_EXECUTION_FAILED", "CUDA_API_FAILED", "INVALID_CUDA_DEVICE", "HANDLE_ERROR",
                "NVRTC_COMPILATION_FAILED", "OUT_OF_MEMORY", "IO_FAILED"}


class cudnnGraphNotSupportedError(Exception):
    """A graph is declined: it is well formed, and Heddle does not run it. The sentence says why."""


@contextmanager
def translated():
    """What the library refuses: declined graphs as cudnnGraphNotSupportedError, failures of the machine as RuntimeError,
    and anything else, what is wrong with an argument, as the ValueError that heddle.Error is."""
    try:
        yield
    except Error as error:
        raise of(error) from None


def of(error):
    if error.status in _DECLINED:
        return cudnnGraphNotSupportedError(str(error))
    return RuntimeError(str(error)) if error.status in _AT_RUN_TIME else error


def get_last_error_string() -> str:
    """The sentence of the calling thread's last failure in the library; empty before."""
    return (load().heddle_last_error() or b"").decode()
