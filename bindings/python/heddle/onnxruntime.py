"""Heddle in ONNX Runtime: libraries of operators, which a session runs in place of its own.

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(heddle.onnxruntime.library_path())
    session = onnxruntime.InferenceSession("model.onnx", options)

or `session = heddle.onnxruntime.session("model.onnx")`. The model stays as it is. `docs/onnxruntime.md` has the operators.
"""

import ctypes
import mmap
import os
import weakref
from functools import cache

from heddle import _library

__all__ = ["DOMAINS", "calls", "library_path", "session"]

# A library for each domain that has operators of Heddle's.
DOMAINS = {"com.microsoft": "libheddle_onnxruntime.so", "ai.onnx": "libheddle_onnxruntime_onnx.so"}


def library_path(domain: str = "com.microsoft") -> str:
    """The library of a domain's operators, for SessionOptions.register_custom_ops_library.

    domain: "com.microsoft", or "ai.onnx" for ONNX's own. With the library of "com.microsoft", onnxruntime refuses nodes of that
    domain in a model that does not import it, those of its own optimisations too; `session` registers it where it fits.
    Raises ValueError for another domain, OSError if the library is not there.
    """
    if domain not in DOMAINS:
        raise ValueError(f"There is no library for the domain {domain!r}, expected one of {', '.join(map(repr, DOMAINS))}.")
    path = _library.library_path().parent / DOMAINS[domain]
    if not path.is_file():
        raise OSError(f"{path} is not there; build it with make.")
    return str(path)


def session(model: str | os.PathLike | bytes, sess_options=None, **arguments):
    """onnxruntime.InferenceSession(model, sess_options, **arguments) with Heddle's operators of the domains that it imports.

    model: a path, or the bytes of a model. sess_options: SessionOptions, to which the libraries are added; several sessions may
    share them, where their models import the same domains. Raises ValueError for options that were given a library of another
    domain here, else as InferenceSession does.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions() if sess_options is None else sess_options
    imported, added = _imports(model), _added.setdefault(options, set())
    if added - imported:
        raise ValueError(f"The SessionOptions have Heddle's operators of {min(added - imported)}, a domain that this model does "
                         "not import: give it options of its own.")
    for domain in DOMAINS.keys() & imported - added:
        options.register_custom_ops_library(library_path(domain))
        added.add(domain)
    if "ai.onnx" in imported and _read(model, _has_norm_without_epsilon, False):
        _leave_out(options, "EmbedLayerNormFusion", "SkipLayerNormFusion")
    given = model if isinstance(model, bytes) else os.fspath(model)
    return onnxruntime.InferenceSession(given, options, **arguments)


# Domains whose libraries `session` gave to options; a library may be given once.
_added = weakref.WeakKeyDictionary()


def calls(domain: str = "com.microsoft") -> int:
    """How many runs of nodes a domain's library has done in this process."""
    return _counter(library_path(domain))()


@cache
def _counter(path):
    function = ctypes.CDLL(path).heddle_onnxruntime_calls
    function.restype, function.argtypes = ctypes.c_uint64, []
    return function


_LEFT_OUT = "optimization.disable_specified_optimizers"


def _leave_out(options, *optimizers):
    """Adds to the optimisations that sessions of these options leave out."""
    try:
        known = options.get_session_config_entry(_LEFT_OUT).split(";")
    except RuntimeError:  # there is no entry
        known = []
    options.add_session_config_entry(_LEFT_OUT, ";".join(dict.fromkeys([*known, *optimizers])))


# ---- What a serialized model says, read from its protobuf fields by their numbers ----


def _read(model, read, otherwise):
    """read(the model's bytes); `otherwise` of what is no model, which is left for onnxruntime to refuse."""
    try:
        if isinstance(model, bytes):
            return read(memoryview(model))
        with open(model, "rb") as file:  # mapped: a model may have gigabytes, of which this reads a few bytes
            return read(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except (OSError, ValueError, IndexError, RecursionError):
        return otherwise


def _imports(model):
    """Domains that a serialized model imports."""
    return _read(model, lambda message: set(_domains(message)), set())


_GRAPH, _OPSET_IMPORT, _FUNCTION = 7, 8, 25  # of ModelProto
_DOMAIN = 1  # of OperatorSetIdProto
_NODE, _FUNCTION_NODE = 1, 7  # of GraphProto and FunctionProto
_OPERATOR, _ATTRIBUTE = 4, 5  # of NodeProto
_NAME, _BODY, _BODIES = 1, 6, 11  # of AttributeProto


def _domains(model):
    for number, opset in _fields(model):
        if number == _OPSET_IMPORT:
            yield next((bytes(name).decode() for field, name in _fields(opset) if field == _DOMAIN), "") or "ai.onnx"


def _has_norm_without_epsilon(model):
    """Whether a LayerNormalization relies on ONNX's epsilon, 1e-5.

    A replaced operator has no defaults in onnxruntime: what fuses it with a sum would take its own, 1e-12.
    """
    return any(operator == b"LayerNormalization" and b"epsilon" not in attributes for operator, attributes in _nodes(model))


def _nodes(model):
    """Operator and names of the attributes of each node of a model, those in bodies and functions too."""
    for number, part in _fields(model):
        if number in (_GRAPH, _FUNCTION):
            yield from _nodes_in(part, _NODE if number == _GRAPH else _FUNCTION_NODE)


def _nodes_in(graph, field):
    for number, node in _fields(graph):
        if number != field:
            continue
        operator, attributes = b"", set()
        for part, value in _fields(node):
            if part == _OPERATOR:
                operator = bytes(value)
            elif part == _ATTRIBUTE:
                for of, inner in _fields(value):
                    if of == _NAME:
                        attributes.add(bytes(inner))
                    elif of in (_BODY, _BODIES):
                        yield from _nodes_in(inner, _NODE)
        yield operator, attributes


def _fields(message):
    """Number and bytes of each field of a protobuf message that has a length; the others are passed over."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 2:
            size, at = _varint(message, at)
            if size > len(message) - at:
                raise ValueError("A field is longer than its message.")
            yield key >> 3, message[at:at + size]
            at += size
        elif kind == 0:
            at = _varint(message, at)[1]
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"A field of a model is of the kind {kind}, which protobuf does not write.")


def _varint(message, at):
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift >= 70:
            raise ValueError("A number is longer than the ten bytes that protobuf writes.")
