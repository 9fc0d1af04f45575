"""Plans: a graph made ready for one device, run on memory whose addresses the caller gives."""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, byref, c_int64, c_size_t, c_void_p
from functools import lru_cache

from heddle._graph import Graph
from heddle._library import DEVICES, call, load


class Plan:
    """A graph, or its text form, planned for "cpu" or "cuda".

    Raises Error with every engine's reason if the graph does not validate or no engine of the device runs it. A plan
    does not change: any number of threads may execute it at once, each with a workspace of its own.
    """

    def __init__(self, graph: Graph | str, device: str) -> None:
        if not isinstance(device, str) or device not in DEVICES:
            raise ValueError(f"There is no device {device!r}, expected one of {', '.join(DEVICES)}.")
        if not isinstance(graph, Graph):
            graph = Graph.of_text(graph)
        self._plan = c_void_p()
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

    def execute(self, addresses: Mapping[int, int], workspace: int | None = None, stream: int | None = None) -> None:
        """Runs the plan: `addresses` is a dict of uid to address, in the device's memory; `stream` a CUstream.

        On a GPU it returns when the work is queued. Raises Error if an address is missing; nothing is written then.
        """
        try:
            count = len(addresses)
            uids, pointers = (c_int64 * count)(*addresses), (c_void_p * count)(*addresses.values())
            workspace, stream = c_void_p(workspace), c_void_p(stream)  # as an argument ctypes would take a str, too
        except (AttributeError, TypeError):
            raise TypeError("Plan.execute takes a dict of uids to addresses, a workspace's address and a CUstream, all of "
                            "them integers.") from None
        call("heddle_plan_execute", self._plan, uids, pointers, count, workspace, stream)

    def _uids(self, function):
        uids, count = POINTER(c_int64)(), c_size_t()
        call(function, self._plan, byref(uids), byref(count))
        return tuple(uids[:count.value])


@lru_cache(maxsize=4096)
def workspace_bytes(graph, device):
    """Bytes of workspace that a graph needs; raises as Plan does."""
    return Plan(graph, device).workspace_bytes
