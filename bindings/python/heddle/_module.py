"""HLO modules, serialized, through the library's rewriter."""

import ctypes
import json
from ctypes import byref, c_size_t, c_void_p

from heddle._library import DEVICES, call, load

def fuse_module(serialized, device):
    """Lets fused calls compute the attention of a serialized HloModuleProto on "cpu" or "cuda".

    Returns the rewritten module's bytes, or None if nothing was fused, and the report (a dict with "fusions" and
    "refusals"). Native code does the work without the interpreter's lock; any number of threads may call it at once.
    Raises heddle.Error if the bytes are no module, or one that is scheduled already.
    """
    library = load()
    result = c_void_p()
    call("heddle_fuse_module", serialized, len(serialized), DEVICES[device], byref(result))
    try:
        report = json.loads(library.heddle_fused_module_report(result))
        size = c_size_t()
        data = library.heddle_fused_module_bytes(result, byref(size))
        return (ctypes.string_at(data, size.value) if data else None), report
    finally:
        library.heddle_fused_module_free(result)
