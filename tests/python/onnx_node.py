"""One node as an ONNX model, run by onnxruntime on arrays that a test made, with its own kernel or a library's."""

import dataclasses
from functools import lru_cache

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

ELEMENTS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16,
            np.dtype(np.float64): TensorProto.DOUBLE, np.dtype(ml_dtypes.bfloat16): TensorProto.BFLOAT16,
            np.dtype(ml_dtypes.float8_e4m3fn): TensorProto.FLOAT8E4M3FN, np.dtype(np.int8): TensorProto.INT8,
            np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int32): TensorProto.INT32,
            np.dtype(np.int64): TensorProto.INT64, np.dtype(bool): TensorProto.BOOL}
# Where sessions run nodes and tensors lie: "cpu", or "cuda", where no node may come to the CPU.
DEVICE = "cpu"
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
# Inputs that lie in the host's memory everywhere.
ON_HOST = ("total_sequence_length", "past_sequence_length")


@dataclasses.dataclass
class Node:
    """inputs and outputs: all names of the operator's, in its order."""

    operator: str
    domain: str
    inputs: tuple
    outputs: tuple
    attributes: dict
    opset: int = 21

    def run(self, feeds, results, library=None):
        """Reads and writes the arrays where they lie; those of one name or memory may be both input and output."""
        session, memory = self.session(feeds, results, library), Memory(DEVICE)
        binding = session.io_binding()
        for bind, arrays in ((binding.bind_input, feeds), (binding.bind_output, results)):
            for name, array in arrays.items():
                assert array.flags.c_contiguous
                bind(name, *memory.of(name, array), ELEMENTS[array.dtype], array.shape, memory.address(name, array))
        session.run_with_iobinding(binding)
        memory.bring_back(results.values())

    def session(self, feeds, results, library=None):
        """Of inputs and outputs with the types and dims of these arrays: of dims it does not know onnxruntime infers wrong ones."""
        return _session(self.model(feeds, results), library and str(library), DEVICE)

    def model(self, feeds, results):
        infos = [[helper.make_tensor_value_info(name, ELEMENTS[array.dtype], array.shape) for name, array in given.items()]
                 for given in (feeds, results)]
        node = helper.make_node(self.operator, _names(self.inputs, feeds), _names(self.outputs, results), domain=self.domain,
                                **self.attributes)
        imports = [helper.make_opsetid("", self.opset)]
        if self.domain:
            imports.append(helper.make_opsetid(self.domain, 1))
        graph = helper.make_graph([node], "node", *infos)
        return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def _names(known, given):
    names = [name if name in given else "" for name in known]
    while not names[-1]:
        names.pop()
    return names


class Memory:
    """Where arrays lie for a session: a CPU's where they are, a GPU's in copies, one for arrays of one address."""

    def __init__(self, device):
        self.device, self.copies = device, {}

    def of(self, name, array):
        """The device that a tensor is bound to, and its number."""
        return ("cpu" if name in ON_HOST else self.device), 0

    def address(self, name, array):
        if self.of(name, array)[0] == "cpu":
            return array.ctypes.data
        if array.ctypes.data not in self.copies:
            content = array.reshape(-1).view(np.uint8) if array.size else np.zeros(1, np.uint8)
            self.copies[array.ctypes.data] = onnxruntime.OrtValue.ortvalue_from_numpy(content.copy(), self.device, 0)
        return self.copies[array.ctypes.data].data_ptr()

    def write(self, array):
        """The array's contents as they are now, to its copy."""
        if self.device != "cpu":
            self.copies[array.ctypes.data].update_inplace(array.reshape(-1).view(np.uint8))

    def bring_back(self, arrays):
        for array in arrays:
            if self.device != "cpu" and array.size:
                array.reshape(-1).view(np.uint8)[...] = self.copies[array.ctypes.data].numpy()


def _session(model, library, device, **provider_options):
    """A session, kept for the next call of its model: on a GPU a few, as each has handles of libraries of its own."""
    return (_session_on_cpu if device == "cpu" else _session_on_gpu)(model, library, device, **provider_options)


def _made(model, library, device, **provider_options):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # a session of more would begin with starting threads
    if device != "cpu":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if library:
        options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(model, options, providers=[(PROVIDERS[device], provider_options)])


_session_on_cpu, _session_on_gpu = lru_cache(maxsize=1024)(_made), lru_cache(maxsize=8)(_made)
