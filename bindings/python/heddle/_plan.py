"""Plans: a graph made ready for one device, run on memory whose addresses the caller gives."""

import ctypes
import json
from collections.abc import Mapping, Sequence
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cached_property, lru_cache
from math import prod
from struct import Struct

from heddle._graph import MAX_RANK, Graph, _text
from heddle._library import DEVICES, call, failure, load
from heddle.arrays._dtypes import BYTES, WORDS
from heddle.arrays._memory import Memory, is_packed, memory_in_place, memory_of, span


class _CShape(ctypes.Structure):
    """heddle_shape of include/heddle/heddle.h."""

    _fields_ = [("uid", c_int64), ("rank", c_int32), ("stride_rank", c_int32), ("dims", c_int64 * MAX_RANK),
                ("strides", c_int64 * MAX_RANK)]

    @classmethod
    def of(cls, uid, dims, strides):
        _check_bits("A number of a shape", (uid, *dims, *strides))
        # Ranks past the limit are passed on, for the library's sentence.
        shape = cls(uid, len(dims), len(strides))
        shape.dims[:len(dims)] = dims[:MAX_RANK]
        shape.strides[:len(strides)] = strides[:MAX_RANK]
        return shape


class Plan:
    """A graph, or its text form, planned for "cpu" or "cuda"; or for a GPU that need not be here, by its architecture, "sm_90a":
    such a plan says what it takes and does, and cannot be executed.

    Raises Error with every engine's reason if the graph does not validate or no engine of the device runs it. A plan
    does not change: any number of threads may execute it at once, each with a workspace of its own.
    """

    def __init__(self, graph: Graph | str, device: str) -> None:
        named = isinstance(device, str) and device.startswith("sm_")
        if not named and (not isinstance(device, str) or device not in DEVICES):
            raise ValueError(f"There is no device {device!r}, expected one of {', '.join(DEVICES)}, or an architecture, "
                             "sm_90a.")
        if not isinstance(graph, Graph):
            graph = Graph.of_text(graph)
        self._plan = c_void_p()
        if named:
            call("heddle_plan_create_for", graph.handle, _text("An architecture", device), byref(self._plan))
        else:
            call("heddle_plan_create", graph.handle, DEVICES[device], byref(self._plan))
        self._device, self._text = device, graph.text

    def __del__(self):
        if getattr(self, "_plan", None):
            load().heddle_plan_free(self._plan)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace that an execution needs, of any alignment."""
        return load().heddle_plan_workspace_bytes(self._plan)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The uids of the tensors it reads, ascending."""
        return self._uids("heddle_plan_inputs")

    @property
    def outputs(self) -> tuple[int, ...]:
        """The uids of the tensors it writes, ascending."""
        return self._uids("heddle_plan_outputs")

    @property
    def description(self) -> str:
        """For people: a line for each step."""
        return load().heddle_plan_description(self._plan).decode()

    @property
    def attention_paths(self) -> str:
        """For people: the path that serves each attention's forward, decode, flash or memory_efficient, and why."""
        return load().heddle_plan_attention_paths(self._plan).decode()

    def execute(self, addresses: Mapping[int, object], workspace: object = None, stream: int | None = None,
                shapes: Mapping[int, Sequence[int]] | None = None,
                strides: Mapping[int, Sequence[int]] | None = None) -> None:
        """Runs the plan: `addresses` is a dict of uid to array or address, in the device's memory; `stream` a CUstream.

        Of an array (of torch, NumPy, JAX, CuPy or with DLPack) the data type, the device, how far it reaches, and where it has
        as many elements as the tensor its strides are held to the tensor's; nothing can be seen of an address, an int. The
        workspace is either, too.

        The graph's dims are maxima: batch and lengths may be less this time. `shapes` is a dict of uid to dims then, and
        `strides` of uid to strides where they are not the graph's. An input left out has the graph's dims, an output those
        that follow. On a GPU it returns when the work is queued. Raises TypeError or ValueError for an array that is not the
        tensor's, and Error if an address is missing or dims are larger than the graph's or do not fit each other; nothing is
        written then.
        """
        shapes, strides = shapes or {}, strides or {}
        sized = _shapes(shapes, strides)
        try:
            uids, stream = (c_int64 * len(addresses))(*addresses), c_void_p(stream)  # as an argument ctypes takes a str, too
            _check_bits("A uid", addresses)
            values = list(addresses.values())
        except (AttributeError, TypeError):
            raise TypeError("Plan.execute takes a dict of uids to arrays or addresses, a workspace or its address, and a "
                            "CUstream, an integer.") from None
        try:
            pointers, memory = (c_void_p * len(values))(*values), c_void_p(workspace)
        except TypeError:
            values = [self._address_of(uid, value, shapes, strides) for uid, value in addresses.items()]
            pointers, memory = (c_void_p * len(values))(*values), c_void_p(self._workspace_at(workspace))
        call("heddle_plan_execute", self._plan, uids, pointers, len(values), sized, len(sized), memory, stream)

    def launcher(self, uids: Sequence[int]) -> "Launcher":
        """Executions that are given their addresses in the order of `uids`, in a fraction of the host's time."""
        return Launcher(self, uids)

    @cached_property
    def _tensors(self):
        """uid -> a bound tensor's name, type, dims and strides, all inferred."""
        graph = Graph.of_text(self._text)
        graph.validate()
        return {entry["uid"]: entry for entry in json.loads(graph.text)["tensors"] if not entry.get("virtual")}

    def _address_of(self, uid, value, shapes, strides):
        """Where an array lies, or what is given if it is an address. Raises TypeError or ValueError for what is neither, and
        for an array that is not the tensor's."""
        tensor = self._tensors.get(uid, {})
        what = f"The tensor {tensor.get('name', '')!r} (uid {uid})"
        memory = memory_in_place(what, value)
        if memory.dims is None or not tensor:
            return memory.address
        dims, expected = list(shapes.get(uid, tensor["dims"])), list(strides.get(uid, tensor["strides"]))
        device = "cpu" if tensor.get("pass_by_value") or self._device == "cpu" else "cuda"
        if memory.dtype != tensor["dtype"]:
            raise ValueError(f"{what} is given an array of {WORDS[memory.dtype]}, expected {WORDS[tensor['dtype']]}.")
        if memory.device not in (None, device):
            raise ValueError(f"{what} is given an array on the device {memory.device}, expected {device}.")
        if uid in self.outputs and not memory.writable:
            raise ValueError(f"{what} is given an array that may not be written, expected one that may.")
        if list(memory.dims) == dims:
            if any(n > 1 and one != other for n, one, other in zip(dims, memory.strides, expected, strict=True)):
                raise ValueError(f"{what} is given an array with strides {list(memory.strides)}, expected {expected}.")
            return memory.address
        # How far a packed tensor reaches is in its offsets, and dims of outputs follow from the inputs'.
        known = "ragged_offset" not in tensor and (uid in shapes or not shapes or uid not in self.outputs)
        if known and prod(memory.dims) < prod(dims):
            raise ValueError(f"{what} is given an array of shape {list(memory.dims)}, expected {dims}.")
        if known and prod(memory.dims) == prod(dims) and not _lie_alike(memory, dims, expected):
            raise ValueError(f"{what} is given an array of shape {list(memory.dims)} with strides {list(memory.strides)}, expected "
                             f"{dims} with {expected}, or one of other dims whose elements lie so in its order.")
        if min(memory.strides, default=0) < 0:
            raise ValueError(f"{what} is given an array of shape {list(memory.dims)} with strides {list(memory.strides)}, expected "
                             "none below 0.")
        reach = span(dims, expected) * BYTES[tensor["dtype"]]
        if known and memory.bytes_there is not None and memory.bytes_there < reach:
            raise ValueError(f"{what} is given an array of {memory.bytes_there} bytes, expected {reach}, which its dims and "
                             "strides reach over.")
        return memory.address

    def _workspace_at(self, given):
        memory = Memory(0) if given is None else memory_of("The workspace", given)
        if memory.dims is None:
            return memory.address
        there = prod(memory.dims) * BYTES.get(memory.dtype, 1)
        if there < self.workspace_bytes:
            raise ValueError(f"The workspace has {there} bytes, expected {self.workspace_bytes}.")
        if not is_packed(memory.dims, memory.strides):
            raise ValueError(f"The workspace is an array of shape {list(memory.dims)} with strides {list(memory.strides)}, "
                             "expected one without gaps.")
        if memory.device not in (None, self._device) or not memory.writable:
            raise ValueError(f"The workspace is an array on the device {memory.device}, expected one on {self._device} that "
                             "may be written.")
        return memory.address

    def _uids(self, function):
        uids, count = POINTER(c_int64)(), c_size_t()
        call(function, self._plan, byref(uids), byref(count))
        return tuple(uids[:count.value])


class Launcher:
    """Executions of a plan on addresses in the order of uids that are known beforehand."""

    # heddle_plan_execute with arrays as addresses and bytes: ctypes checks arrays of its own for half a microsecond more.
    _Execute = CFUNCTYPE(c_int, c_void_p, c_void_p, c_char_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p)

    def __init__(self, plan: Plan, uids: Sequence[int]) -> None:
        own_uids = (c_int64 * len(uids))(*uids)
        _check_bits("A uid", uids)
        # What every launch takes, where a function finds it fastest.
        handle, count, pointers = plan._plan.value, len(uids), Struct(f"{len(uids)}Q").pack
        uids_address, execute = ctypes.addressof(own_uids), self._Execute(("heddle_plan_execute", load()))
        self._kept = plan, own_uids  # for as long as the numbers above stand for them

        def launch(addresses: Sequence[int], workspace: int | None, stream: int | None,
                   shapes: Mapping[int, Sequence[int]] | None = None,
                   strides: Mapping[int, Sequence[int]] | None = None, kept: object = self._kept) -> None:
            """As Plan.execute, of ints that are known to be such. Raises Error."""
            sized = _shapes(shapes, strides or {}) if shapes else None
            status = execute(handle, uids_address, pointers(*addresses), count, sized, len(shapes) if shapes else 0, workspace,
                             stream)
            if status != 0:
                raise failure(status)

        self.launch = launch

    def __call__(self, *args, **kwargs) -> None:
        """As launch."""
        self.launch(*args, **kwargs)


def _lie_alike(memory, dims, strides):
    """Whether an array of other dims has a tensor's elements: its axes in another order, or split and joined in memory's."""
    given, expected = ([(n, step) for n, step in zip(*axes, strict=True) if n > 1]
                       for axes in ((memory.dims, memory.strides), (dims, strides)))
    by_step = sorted(expected, key=lambda axis: -axis[1])
    return sorted(given) == sorted(expected) or _joined(given) == _joined(by_step)


def _joined(axes):
    """Neighbours that are steps of one are one."""
    joined = []
    for n, step in axes:
        if joined and joined[-1][1] == n * step:
            n *= joined.pop()[0]
        joined.append((n, step))
    return joined


def _check_bits(what, ints):
    """Raises ValueError for one that ctypes would cut to 64 bits, to another's uid or dim."""
    for one in (min(ints, default=0), max(ints, default=0)):
        if not -2**63 <= one < 2**63:
            raise ValueError(f"{what} is {one}, expected 64 bits.")


def _shapes(dims, strides):
    try:
        dims, strides = dict(dims), dict(strides)
        if alone := strides.keys() - dims.keys():
            raise ValueError(f"Plan.execute is given strides for uid {min(alone)}, but no shape, expected both.")
        given = [_CShape.of(uid, tuple(dims[uid]), tuple(strides.get(uid, ()))) for uid in dims]
    except (AttributeError, TypeError):
        raise TypeError("Plan.execute takes shapes and strides as dicts of uids to integers, one for each dim.") from None
    return (_CShape * len(given))(*given)


@lru_cache(maxsize=4096)
def workspace_bytes(graph, device):
    """Bytes of workspace that a graph needs; raises as Plan does."""
    return Plan(graph, device).workspace_bytes
