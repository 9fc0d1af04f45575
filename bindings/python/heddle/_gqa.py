"""GroupQueryAttention, ONNX Runtime's operator, as a graph."""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_bool, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p

from heddle._graph import MAX_RANK, Graph, _dims, _dtype, _number, _text, _whole
from heddle._library import call, load

INPUTS = ("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache",
          "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight",
          "query_seqlens")
OUTPUTS = ("output", "present_key", "present_value", "output_qk")
# How an execution calls them.
UIDS = {name: 1 + n for n, name in enumerate(INPUTS)} | {name: 101 + n for n, name in enumerate(OUTPUTS)}


class _CTensor(ctypes.Structure):
    """heddle_gqa_tensor of include/heddle/heddle.h."""

    _fields_ = [("dtype", c_int), ("rank", c_int32), ("dims", c_int64 * MAX_RANK)]


class _COperator(ctypes.Structure):
    """heddle_gqa of include/heddle/heddle.h."""

    _fields_ = [("inputs", _CTensor * len(INPUTS)), ("wanted", c_bool * len(OUTPUTS)), ("total_sequence_length", c_int64),
                ("num_heads", c_int64), ("kv_num_heads", c_int64), ("scale", c_double), ("softcap", c_double),
                ("causal", c_int64), ("local_window_size", c_int64), ("sliding_window_cache", c_int64),
                ("do_rotary", c_int64), ("rotary_interleaved", c_int64), ("smooth_softmax", c_int64),
                ("qk_output", c_int64), ("qk_norm_epsilon", c_double), ("q_norm_epsilon", c_double),
                ("k_norm_epsilon", c_double), ("k_quant_type", c_char_p), ("v_quant_type", c_char_p),
                ("kv_cache_bit_width", c_int64)]


_ATTRIBUTES = dict(_COperator._fields_[3:])


def gqa(total_sequence_length: int, outputs: Sequence[str] = OUTPUTS[:3], **node: object) -> Graph:
    """The graph of a GroupQueryAttention node: new rows put into the cache, and attention to it.

    total_sequence_length: what the node's input of this name holds. outputs: the names of those it makes.
    node: its other inputs by name, each a data type and dims, as query=("f32", (2, 1, 512)), and its attributes, as
    num_heads=8; those left out have the operator's defaults. Raises Error with the sentence the operator's users know.

    `Plan.execute` binds tensors by `gqa.uids`, a dict of names, in the node's own memory. past_key may have the address
    of present_key, past_value that of present_value: only new rows are written then.
    """
    op = _COperator()
    load().heddle_gqa_set_defaults(byref(op))
    op.total_sequence_length = _whole("total_sequence_length", total_sequence_length)
    op.inputs[INPUTS.index("total_sequence_length")] = _CTensor(_dtype("i32"), 1, (c_int64 * MAX_RANK)(1))
    if not isinstance(outputs, (list, tuple, set, frozenset)):
        raise TypeError(f"outputs is of type {type(outputs).__name__}, expected a list of names, of {', '.join(OUTPUTS)}.")
    for name in outputs:
        if name not in OUTPUTS:
            raise ValueError(f"gqa() has no output {name!r}, expected one of {', '.join(OUTPUTS)}.")
    for n, name in enumerate(OUTPUTS):
        op.wanted[n] = name in outputs
    for name, value in node.items():
        if name in INPUTS:
            if value is not None:
                op.inputs[INPUTS.index(name)] = _tensor(name, value)
        elif name not in _ATTRIBUTES:
            raise TypeError(f"gqa() has no input and no attribute {name!r}.")
        elif _ATTRIBUTES[name] is c_char_p:
            setattr(op, name, _text(f"The attribute {name}", value))
        else:
            number = _number if _ATTRIBUTES[name] is c_double else _whole
            setattr(op, name, number(f"The attribute {name}", value))
    graph = c_void_p()
    call("heddle_gqa_create", byref(op), byref(graph))
    return Graph.of_handle(graph)


gqa.uids = UIDS


def _tensor(name, given):
    try:
        dtype, dims = given
    except (TypeError, ValueError):
        raise TypeError(f"The input {name} is {given!r}, expected a data type and dims.") from None
    dims = _dims("Dims", dims)
    return _CTensor(_dtype(dtype), len(dims), (c_int64 * MAX_RANK)(*dims))
