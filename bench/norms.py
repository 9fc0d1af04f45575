"""Norms of ONNX models on this CPU: Heddle's operators beside onnxruntime's own, in sessions of one node.

    taskset -c 0 .venv-bench/bin/python bench/norms.py
    .venv-bench/bin/python bench/norms.py --rows 512 --columns 1024 --rounds 50

Milliseconds of the process's CPU time, the least of the rounds, in which the two take turns; inputs and outputs lie where
they are bound. Skip norms also give the sum that they normalise.
"""

import argparse
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "bindings" / "python"))
import heddle.onnxruntime  # noqa: E402

ELEMENTS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16,
            np.dtype(ml_dtypes.bfloat16): TensorProto.BFLOAT16}
MICROSOFT, ONNX = "com.microsoft", "ai.onnx"
# Operator -> domain of its library, inputs, outputs.
NORMS = {"SkipSimplifiedLayerNormalization": (MICROSOFT, ("x", "skip", "gamma"), ("y", "", "", "sum")),
         "SkipLayerNormalization": (MICROSOFT, ("x", "skip", "gamma", "beta"), ("y", "", "", "sum")),
         "SimplifiedLayerNormalization": (ONNX, ("x", "gamma"), ("y",)),
         "LayerNormalization": (ONNX, ("x", "gamma", "beta"), ("y",))}


def session(operator, arrays, library):
    """What runs the node on the arrays by name, with the library's operator or, of None, onnxruntime's."""
    domain, inputs, outputs = NORMS[operator]
    info = lambda name: helper.make_tensor_value_info(name, ELEMENTS[arrays[name].dtype], arrays[name].shape)
    written = [name for name in outputs if name]
    node = helper.make_node(operator, inputs, outputs, domain="" if domain == ONNX else domain, epsilon=1e-6)
    graph = helper.make_graph([node], "norm", [*map(info, inputs)], [*map(info, written)])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    if library:
        options.register_custom_ops_library(library)
    model = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    made = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = made.io_binding()
    for bind, names in ((binding.bind_input, inputs), (binding.bind_output, written)):
        for name in names:
            bind(name, "cpu", 0, ELEMENTS[arrays[name].dtype], arrays[name].shape, arrays[name].ctypes.data)
    return lambda: made.run_with_iobinding(binding)


def least(runs, rounds):
    """Milliseconds of each."""
    best = [float("inf")] * len(runs)
    for run in runs:
        run()
    for _ in range(rounds):
        for n, run in enumerate(runs):
            start = time.process_time()
            run()
            best[n] = min(best[n], time.process_time() - start)
    return [1000 * seconds for seconds in best]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 2048), ("columns", 4096), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"({default})")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    whole, column = (1, arguments.rows, arguments.columns), (arguments.columns,)
    print("| operator |" + "".join(f" {np.dtype(dtype).name} | its own |" for dtype in ELEMENTS) + "\n|---|" + "--:|--:|" * 3)
    for operator, (domain, *_) in NORMS.items():
        cells = []
        for dtype in ELEMENTS:
            arrays = {name: rng.standard_normal(dims, np.float32).astype(dtype) for name, dims in (
                ("x", whole), ("skip", whole), ("gamma", column), ("beta", column), ("y", whole), ("sum", whole))}
            ours, own = (session(operator, arrays, library) for library in (heddle.onnxruntime.library_path(domain), None))
            cells += [f" {time:.1f} |" for time in least([ours, own], arguments.rounds)]
        print(f"| {operator} |{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
