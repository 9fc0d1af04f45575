"""Graph: a pygraph that takes arrays in the place of tensors, is built as its `with` ends, and is called like a function."""

import inspect
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial

from heddle import _checks
from heddle.arrays import _new
from heddle.cudnn import _pack
from heddle.cudnn._attention import Attention
from heddle.cudnn._declined import Declined
from heddle.cudnn._fp8 import Fp8Attention
from heddle.cudnn._handle import Handle, checked, create_handle, set_stream
from heddle.cudnn._norms import Norms
from heddle.cudnn._pointwise import PointwiseOps
from heddle.cudnn._pygraph import pygraph
from heddle.cudnn._rope import Rope
from heddle.cudnn._tensor import Tensor
from heddle.cudnn._types import NAMES, heur_mode

_OPS = {name for kind in (Attention, Fp8Attention, Norms, Rope, PointwiseOps, Declined) for name in vars(kind)
        if not name.startswith("_")}
_ALIKE = {"tensor", "tensor_like", "tensor_scalar", "serialize", "key", "get_workspace_size", "get_execution_plan_count",
          "query_tensor_attributes_of_uid", "get_plan_name", "get_behavior_notes", "deselect_workspace_greater_than",
          "deselect_shared_mem_greater_than", "deselect_engines", "select_behavior_notes", "deselect_behavior_notes",
          "select_numeric_notes", "deselect_numeric_notes"}


class Graph:
    """The pygraph that `options` make, its tensors known by names "op::port", or by their own.

    inputs, outputs: names, arrays that ops were given, or tensors, in the order in which calls take and give them.
    handle: one of create_handle, or "auto" for the device's own and torch's current stream, as without one.
    heuristics: modes of the plan. workspace_alloc: False if each call is given its `workspace`.
    """

    def __init__(self, *, handle: Handle | str | None = None, inputs: Sequence | None = None,
                 outputs: Sequence | None = None, heuristics: Sequence[heur_mode] = (heur_mode.A, heur_mode.FALLBACK),
                 workspace_alloc: bool = True, **options: object) -> None:
        self._inputs, self._outputs = _listed("inputs", inputs), _listed("outputs", outputs)
        if handle not in (None, "auto"):
            checked(handle)
        self._handle = handle
        self._heuristics, self._allocates = heuristics, _checks.flag("workspace_alloc", workspace_alloc)
        self._graph = pygraph(handle=None if handle == "auto" else handle, **options)
        self._arrays = {}  # id -> the array, that the id stays its own, and its tensor
        self._read, self._made = {}, {}  # "op::port" -> tensor
        self._counts, self._names, self._built = {}, set(), False
        self._of_thread = threading.local()  # its workspace: calls of several threads may run at once

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            return
        self._graph.validate()
        self._graph.build_operation_graph()
        self._graph.create_execution_plans(list(self._heuristics))
        self._graph.check_support()
        self._graph.build_plans()
        self._built = True
        if self._inputs or self._outputs:
            self.set_io_tuples(self._inputs, self._outputs)

    def __getattr__(self, name):
        if name in _OPS:
            return partial(self._op, name)
        if name in _ALIKE:
            return getattr(self._graph, name)
        if hasattr(pygraph, name) and not name.startswith("_"):
            raise RuntimeError(f"{name} is not for a cudnn.Graph, which is checked and built as its `with` ends; expected a "
                               "pygraph.")
        raise AttributeError(f"A cudnn.Graph has no {name}.")

    def set_io_tuples(self, inputs: Sequence, outputs: Sequence) -> None:
        """Says in which order calls take inputs and give outputs. Together they are all tensors that are bound."""
        self._inputs, self._outputs = _listed("inputs", inputs), _listed("outputs", outputs)
        if not self._built:
            return
        found = []
        for what, given, known in (("inputs", self._inputs, self._read), ("outputs", self._outputs, self._made)):
            tensors = [self._find(f"{what}[{n}]", one, known) for n, one in enumerate(given)]
            for n, tensor in enumerate(tensors):
                if tensor in tensors[:n]:
                    raise ValueError(f"{what}[{n}] is the tensor {tensor.get_name()!r} a second time, expected each once.")
            found.append(tensors)
        self._inputs, self._outputs = found
        for port in self._graph._built().ports:
            if port.tensor not in found[0] and port.tensor not in found[1]:
                raise ValueError(f"The {port} is bound and neither among inputs nor outputs, expected it in one of them.")

    def __call__(self, *args: object, handle: Handle | None = None, workspace: object = None):
        """Runs the graph: on arrays in the order of `inputs`, giving the outputs, one alone or a tuple; or on a dict of names
        (or tensors, or uids) to arrays, to which outputs that it lacks are added, by the names that they have."""
        if not self._built:
            raise RuntimeError("The graph has not been built, expected its `with` to have ended.")
        if len(args) == 1 and isinstance(args[0], Mapping):
            return self._run_by_name(args[0], handle, workspace)
        if not self._inputs and not self._outputs:
            raise ValueError("The graph is called with arrays and has no order of them, expected inputs and outputs, or a dict.")
        if len(args) != len(self._inputs):
            raise ValueError(f"The graph is called with {len(args)} arrays, expected {len(self._inputs)}, its inputs.")
        pack = dict(zip(self._inputs, args, strict=True))
        for tensor in self._outputs:
            pack[tensor] = _like(tensor, tensor.get_name(), args[0])
        self._run(pack, handle, workspace)
        made = tuple(pack[tensor] for tensor in self._outputs)
        return made[0] if len(made) == 1 else made

    def _op(self, op, *args, **kwargs):
        count = self._counts[op] = self._counts.get(op, -1) + 1
        name = _checks.text("name", kwargs.setdefault("name", f"{op}.{count}"))
        if name in self._names:
            raise ValueError(f"The name {name!r} is given to two ops, expected one.")
        self._names.add(name)
        method = getattr(self._graph, op)
        ports = [port for port in inspect.signature(method).parameters if port not in ("args", "kwargs")]
        given = [self._tensors(value, f"{name}::{n}", f"{name}::{ports[n]}" if n < len(ports) else None)
                 for n, value in enumerate(args)]
        made = method(*given, **{port: self._tensors(value, f"{name}::{port}") for port, value in kwargs.items()})
        for n, tensor in enumerate(made if isinstance(made, tuple) else (made,)):
            if tensor is not None:
                self._made[tensor.get_name() or f"{name}::{n}"] = tensor
        return made

    def _tensors(self, value, *names):
        """The value with tensors in the place of its arrays, which are known by these names then."""
        if isinstance(value, tuple):
            return tuple(self._tensors(one, *(f"{name}::{n}" for name in names if name)) for n, one in enumerate(value))
        if _is_array(value):
            if id(value) not in self._arrays:
                detached = value.detach() if getattr(value, "requires_grad", False) else value
                self._arrays[id(value)] = value, self._graph.tensor_like(detached)
            value = self._arrays[id(value)][1]
        if isinstance(value, Tensor):
            self._read.update((name, value) for name in names if name)
        return value

    def _find(self, what, given, known):
        if isinstance(given, Tensor):
            return self._graph._tensors.own(what, given)
        if isinstance(given, str):
            found = known.get(given) or next((one for one in known.values() if one.get_name() == given), None)
        elif _is_array(given):
            found = self._arrays.get(id(given), (None, None))[1]
        else:
            found = next((one for one in known.values() if one.get_uid() == given), None)
        if found is None:
            shown = repr(given) if isinstance(given, (str, int)) else f"an array of type {type(given).__name__}"
            raise ValueError(f"{what} is {shown}, expected a tensor of the graph: one of {', '.join(known)}.")
        return found

    def _run_by_name(self, given, handle, workspace):
        pack, lacking = {}, []
        for port in self._graph._built().ports:
            names = [name for known in (self._made, self._read) for name, one in known.items() if one is port.tensor]
            keys = [*names, port.tensor, port.tensor.get_name(), port.uid]
            key = next((key for key in keys if key in given), None)
            if key is not None:
                pack[port.tensor] = given[key]
            elif port.output:
                # By the name that the program gave it, and by its op's.
                lacking.append(({*names, port.tensor.get_name()} - {""}, port.tensor))
            else:
                raise ValueError(f"The dict is missing an array for the {port}, expected it by one of the names "
                                 f"{', '.join(names)}.")
        for names, tensor in lacking:
            pack[tensor] = _like(tensor, tensor.get_name(), next(iter(pack.values())))
            given.update(dict.fromkeys(names, pack[tensor]))
        self._run(pack, handle, workspace)
        return given

    def _run(self, pack, handle, workspace):
        if handle is None:
            handle = _current() if self._handle in (None, "auto") else self._handle
        if workspace is None:
            workspace = self._own_workspace()
        self._graph.execute(pack, workspace, handle)

    def _own_workspace(self):
        if not self._allocates:
            raise ValueError("The graph has workspace_alloc=False and is called without a workspace, expected one of "
                             f"{self.get_workspace_size()} bytes.")
        if not hasattr(self._of_thread, "workspace"):
            size = self.get_workspace_size()
            on_gpu = self._graph._built().device == "cuda"
            self._of_thread.workspace = _new.gpu_workspace(size) if on_gpu else _pack.own_workspace(size)
        workspace = self._of_thread.workspace
        return workspace[1] if isinstance(workspace, tuple) else workspace


def _like(tensor, name, sample):
    """An array for an output, of the library of `sample` and where that lies."""
    return _new.empty(f"The output {name!r}", sample, tensor.get_dim(), NAMES[tensor.get_data_type()], tensor.get_stride())


def _current():
    """A handle of the default device, on torch's current stream where torch is there."""
    handle, torch = create_handle(), sys.modules.get("torch")
    if handle.device == "cuda" and torch is not None:
        set_stream(handle, torch.cuda.current_stream().cuda_stream)
    return handle


def _listed(what, given):
    if given is None:
        return []
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"{what} is of type {type(given).__name__}, expected a list of names, arrays or tensors.")
    return list(given)


def _is_array(value):
    return hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")
