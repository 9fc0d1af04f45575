"""The cases that ONNX itself has of the operators in Heddle's library for its domain, run by Heddle in sessions of onnxruntime.

They come with the package `onnx`: of each a model of one node, its inputs and the outputs that ONNX expects.
"""

import importlib
from collections import Counter

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx.backend.test.case import node as onnx_cases
from onnx_node import ELEMENTS

import heddle.onnxruntime

OPERATORS = ("Attention", "RotaryEmbedding", "RMSNormalization", "LayerNormalization")
for operator in OPERATORS:
    importlib.import_module(f"{onnx_cases.__name__}.{operator.lower()}")
# The others spell an operator out in those it is made of.
CASES = {case.name: case for case in onnx_cases._NodeTestCases
         if len(case.model.graph.node) == 1 and case.model.graph.node[0].op_type in OPERATORS}
CLOSE = {np.dtype(np.float16): 2e-3, np.dtype(ml_dtypes.bfloat16): 2e-2}


def operator_of(case):
    return case.model.graph.node[0].op_type


def test_there_are_cases_of_each_operator():
    counts = Counter(operator_of(case) for case in CASES.values())
    assert counts == {"Attention": 93, "RotaryEmbedding": 8, "RMSNormalization": 19, "LayerNormalization": 19}


@pytest.mark.parametrize("name", CASES)
def test_is_what_onnx_expects(name):
    case = CASES[name]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a session of more would begin with starting threads
    session = heddle.onnxruntime.session(case.model.SerializeToString(), options)
    before = heddle.onnxruntime.calls("ai.onnx")
    for inputs, outputs in case.data_sets:
        binding = session.io_binding()  # onnxruntime makes no arrays of bf16
        given = [np.ascontiguousarray(array) for array in inputs]
        results = [np.full(array.shape, -77).astype(array.dtype) for array in outputs]
        for bind, named, arrays in ((binding.bind_input, case.model.graph.input, given),
                                    (binding.bind_output, case.model.graph.output, results)):
            for one, array in zip(named, arrays, strict=True):
                bind(one.name, "cpu", 0, ELEMENTS[array.dtype], array.shape, array.ctypes.data)
        session.run_with_iobinding(binding)
        for result, expected in zip(results, outputs, strict=True):
            close = CLOSE.get(result.dtype, 2e-5)
            np.testing.assert_allclose(result.astype(np.float64), expected.astype(np.float64), rtol=close, atol=close)
    assert heddle.onnxruntime.calls("ai.onnx") == before + len(case.data_sets) > before
