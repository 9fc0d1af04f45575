"""libheddle, loaded once by ctypes: its functions' types, its failures as exceptions.

The library is the C interface of include/heddle/heddle.h; there is no extension module, so one wheel serves every
Python.
"""

import ctypes
import hashlib
import os
from ctypes import POINTER, c_bool, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path

NAME = "libheddle.so"
DEVICES = {"cpu": 0, "cuda": 1}

# Function -> result and argument types; a `Status` result is checked by `call`.
Status = c_int
FUNCTIONS = {
    "heddle_last_error": (c_char_p, []),
    "heddle_status_name": (c_char_p, [c_int]),
    "heddle_version": (c_char_p, []),
    "heddle_graph_create": (Status, [c_char_p, c_int, c_int, c_int, POINTER(c_void_p)]),
    "heddle_graph_add_tensor": (Status, [c_void_p, c_void_p]),
    "heddle_graph_add_node": (Status, [c_void_p, c_char_p, c_char_p, POINTER(c_int32)]),
    "heddle_node_set_tensor": (Status, [c_void_p, c_int32, c_char_p, c_int64]),
    "heddle_node_set_number": (Status, [c_void_p, c_int32, c_char_p, c_double]),
    "heddle_node_set_integer": (Status, [c_void_p, c_int32, c_char_p, c_int64]),
    "heddle_node_set_flag": (Status, [c_void_p, c_int32, c_char_p, c_bool]),
    "heddle_node_set_choice": (Status, [c_void_p, c_int32, c_char_p, c_char_p]),
    "heddle_node_set_dims": (Status, [c_void_p, c_int32, c_char_p, POINTER(c_int64), c_int32]),
    "heddle_node_add_pointwise": (Status, [c_void_p, c_int32, c_char_p, c_char_p, POINTER(c_int64), c_int32, c_int64, c_int32]),
    "heddle_graph_validate": (Status, [c_void_p]),
    "heddle_graph_text": (Status, [c_void_p, POINTER(c_char_p)]),
    "heddle_graph_parse": (Status, [c_char_p, c_size_t, POINTER(c_void_p)]),
    "heddle_graph_free": (None, [c_void_p]),
    "heddle_gqa_set_defaults": (None, [c_void_p]),
    "heddle_gqa_create": (Status, [c_void_p, POINTER(c_void_p)]),
    "heddle_default_device": (Status, [POINTER(c_int)]),
    "heddle_graph_supported": (Status, [c_void_p, c_int]),
    "heddle_plan_create": (Status, [c_void_p, c_int, POINTER(c_void_p)]),
    "heddle_plan_create_for": (Status, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "heddle_plan_free": (None, [c_void_p]),
    "heddle_plan_workspace_bytes": (c_size_t, [c_void_p]),
    "heddle_plan_inputs": (Status, [c_void_p, POINTER(POINTER(c_int64)), POINTER(c_size_t)]),
    "heddle_plan_outputs": (Status, [c_void_p, POINTER(POINTER(c_int64)), POINTER(c_size_t)]),
    "heddle_plan_description": (c_char_p, [c_void_p]),
    "heddle_plan_attention_paths": (c_char_p, [c_void_p]),
    "heddle_plan_execute": (Status, [c_void_p, POINTER(c_int64), POINTER(c_void_p), c_size_t, c_void_p, c_size_t, c_void_p,
                                     c_void_p]),
    "heddle_python_execute": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "heddle_fuse_module": (Status, [c_char_p, c_size_t, c_int, POINTER(c_void_p)]),
    "heddle_fused_module_free": (None, [c_void_p]),
    "heddle_fused_module_bytes": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "heddle_fused_module_report": (c_char_p, [c_void_p]),
}


class Error(ValueError):
    """A failure of the library: its one sentence, and the name of its status ("INVALID_VALUE")."""

    def __init__(self, sentence: str, status: str) -> None:
        super().__init__(sentence)
        self.status = status


def library_path() -> Path:
    """Where libheddle.so is: $HEDDLE_LIBRARY, else the installed package's own, else the checkout's build."""
    named = os.environ.get("HEDDLE_LIBRARY")
    if named:
        return Path(named)
    here = Path(__file__).parent
    carried = here / "lib" / NAME
    return carried if carried.is_file() else here.parents[2] / "build" / "lib" / NAME


def command_path():
    """Where the heddle command is: beside the library, in the installed package or in the checkout's build."""
    path = library_path().parent.parent / "bin" / "heddle"
    if not path.is_file():
        raise OSError(f"{path} is not there; build it with make.")
    return path


@cache
def load():
    """The library, its functions typed. Raises OSError with a sentence if it is not there."""
    path = library_path()
    if not path.is_file():
        raise OSError(f"{path} is not there; build it with make, or name it in HEDDLE_LIBRARY.")
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise OSError(f"{path} has no {name}: it is another library, or Heddle's of another version.")
        function.restype, function.argtypes = result, arguments
    return library


def call(name, *arguments):
    """Calls a function that returns a status; raises Error with the library's sentence if it failed."""
    library = load()
    status = getattr(library, name)(*arguments)
    if status != 0:
        raise failure(status)


def failure(status):
    """The Error of a function that has just given this status to the calling thread."""
    library = load()
    return Error(library.heddle_last_error().decode(), library.heddle_status_name(status).decode())


def version() -> str:
    """The library's version, "0.1.0"."""
    return load().heddle_version().decode()


@cache
def identity():
    """The version with a digest of the library itself, "0_1_0_5f3a91c2": two builds that differ have two of them."""
    digest = hashlib.sha256(library_path().read_bytes()).hexdigest()
    return f"{version().replace('.', '_')}_{digest[:8]}"
