"""Plans: a graph made ready for one device, run on memory whose addresses the caller gives."""

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import lru_cache
from struct import Struct

from heddle._graph import MAX_RANK, Graph, _text
from heddle._library import DEVICES, call, failure, load


class _CShape(ctypes.Structure):
    """heddle_shape of include/heddle/heddle.h."""

    _fields_ = [("uid", c_int64), ("rank", c_int32), ("stride_rank", c_int32), ("dims", c_int64 * MAX_RANK),
                ("strides", c_int64 * MAX_RANK)]

    @classmethod
    def of(cls, uid, dims, strides):
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

    def execute(self, addresses: Mapping[int, int], workspace: int | None = None, stream: int | None = None,
                shapes: Mapping[int, Sequence[int]] | None = None,
                strides: Mapping[int, Sequence[int]] | None = None) -> None:
        """Runs the plan: `addresses` is a dict of uid to address, in the device's memory; `stream` a CUstream.

        The graph's dims are maxima: batch and lengths may be less this time. `shapes` is a dict of uid to dims then, and
        `strides` of uid to strides where they are not the graph's. An input left out has the graph's dims, an output those
        that follow. On a GPU it returns when the work is queued. Raises Error if an address is missing or dims are larger
        than the graph's or do not fit each other; nothing is written then.
        """
        try:
            count = len(addresses)
            uids, pointers = (c_int64 * count)(*addresses), (c_void_p * count)(*addresses.values())
            workspace, stream = c_void_p(workspace), c_void_p(stream)  # as an argument ctypes would take a str, too
        except (AttributeError, TypeError):
            raise TypeError("Plan.execute takes a dict of uids to addresses, a workspace's address and a CUstream, all of "
                            "them integers.") from None
        sized = _shapes(shapes or {}, strides or {})
        call("heddle_plan_execute", self._plan, uids, pointers, count, sized, len(sized), workspace, stream)

    def launcher(self, uids: Sequence[int]) -> "Launcher":
        """Executions that are given their addresses in the order of `uids`, in a fraction of the host's time."""
        return Launcher(self, uids)

    def _uids(self, function):
        uids, count = POINTER(c_int64)(), c_size_t()
        call(function, self._plan, byref(uids), byref(count))
        return tuple(uids[:count.value])


class Launcher:
    """Executions of a plan on addresses in the order of uids that are known beforehand."""

    # heddle_plan_execute with arrays as addresses and bytes: ctypes checks arrays of its own for half a microsecond more.
    _Execute = CFUNCTYPE(c_int, c_void_p, c_void_p, c_char_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p)

    def __init__(self, plan: Plan, uids: Sequence[int]) -> None:
        self._plan, self._handle, self._count = plan, plan._plan.value, len(uids)
        self._uids, self._pointers = (c_int64 * len(uids))(*uids), Struct(f"{len(uids)}Q").pack
        self._uids_address = ctypes.addressof(self._uids)
        self._execute = self._Execute(("heddle_plan_execute", load()))

    def __call__(self, addresses: Sequence[int], workspace: int | None, stream: int | None,
                 shapes: Mapping[int, Sequence[int]] | None = None,
                 strides: Mapping[int, Sequence[int]] | None = None) -> None:
        """As Plan.execute, of ints that are known to be such. Raises Error."""
        sized = _shapes(shapes, strides or {}) if shapes else None
        status = self._execute(self._handle, self._uids_address, self._pointers(*addresses), self._count, sized,
                               len(shapes) if shapes else 0, workspace, stream)
        if status != 0:
            raise failure(status)


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
