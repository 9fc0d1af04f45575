"""onnxruntime's MultiHeadAttention, and GroupQueryAttention for causal attention (as many kv heads as heads)."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from cells import HEADS

TYPES = {"f32": (TensorProto.FLOAT, np.float32), "f16": (TensorProto.FLOAT16, np.float16)}
OPTIONS = onnxruntime.SessionOptions()


def start(threads):
    OPTIONS.intra_op_num_threads = threads
    OPTIONS.inter_op_num_threads = 1
    OPTIONS.log_severity_level = 3


def model(cell, element_type):
    """One node: query, key, value [1, S, heads * d] to output of the same shape."""
    shape = [1, cell.sequence, HEADS * cell.head_dim]
    inputs = [helper.make_tensor_value_info(n, element_type, shape) for n in ("query", "key", "value")]
    outputs = [helper.make_tensor_value_info("output", element_type, shape)]
    constants = []
    if cell.causal:
        past = [1, HEADS, 0, cell.head_dim]
        constants = [helper.make_tensor("past_key", element_type, past, []),
                     helper.make_tensor("past_value", element_type, past, []),
                     helper.make_tensor("last_key", TensorProto.INT32, [1], [cell.sequence - 1]),
                     helper.make_tensor("total_keys", TensorProto.INT32, [1], [cell.sequence])]
        node = helper.make_node("GroupQueryAttention",
                                ["query", "key", "value", "past_key", "past_value", "last_key", "total_keys"],
                                ["output", "present_key", "present_value"],
                                domain="com.microsoft", num_heads=HEADS, kv_num_heads=HEADS)
        present = [1, HEADS, cell.sequence, cell.head_dim]
        outputs += [helper.make_tensor_value_info(n, element_type, present) for n in ("present_key", "present_value")]
    else:
        node = helper.make_node("MultiHeadAttention", ["query", "key", "value"], ["output"],
                                domain="com.microsoft", num_heads=HEADS)
    graph = helper.make_graph([node], "attention", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def prepare(cell, query, key, value, gradient):
    del gradient
    if cell.backward:
        raise NotImplementedError("onnxruntime's attention operators have no backward")
    if cell.dtype not in TYPES:
        raise NotImplementedError(f"no {cell.dtype} attention on its CPU provider")
    element_type, dtype = TYPES[cell.dtype]
    try:
        session = onnxruntime.InferenceSession(model(cell, element_type).SerializeToString(), OPTIONS,
                                               providers=["CPUExecutionProvider"])
    except Exception as error:  # its own exception types are not public
        raise NotImplementedError(str(error).splitlines()[0]) from error

    def rows(array):  # [1, heads, S, d] to [1, S, heads * d]
        return np.ascontiguousarray(array.transpose(0, 2, 1, 3).reshape(1, cell.sequence, -1).astype(dtype))

    feed = {"query": rows(query), "key": rows(key), "value": rows(value)}
    last = {}

    def run():
        last["output"] = session.run(["output"], feed)[0]

    def output():
        heads = last["output"].reshape(1, cell.sequence, HEADS, cell.head_dim)
        return heads.transpose(0, 2, 1, 3).astype(np.float32)

    return run, output
