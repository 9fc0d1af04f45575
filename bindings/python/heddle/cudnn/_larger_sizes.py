"""Executions with sizes beyond those that a graph was planned with: a plan of their own, kept for the next time."""

import json
import threading

from heddle import Graph, Plan
from heddle.cudnn._errors import translated
from heddle.cudnn._lowering import Lowered
from heddle.cudnn._pack import Binding

_KEPT = 16  # as many as a plan of the library keeps for smaller sizes


class LargerSizes:
    """Plans of one graph by the sizes that executions asked for."""

    def __init__(self):
        self._bindings, self._lock = {}, threading.Lock()

    def find_or_make(self, lowered, planned, shapes, strides):
        """The binding at these dims and strides, by the library's uids; others keep theirs, but for what follows from them."""
        key = planned.device, str(sorted(shapes.items())), str(sorted(strides.items()))
        with self._lock:
            binding = self._bindings.pop(key, None)
        if binding is None:
            with translated():
                resized = _resized(lowered, planned, shapes, strides)
                binding = Binding(resized, Plan(resized.graph, planned.device), planned.device)
        with self._lock:
            while len(self._bindings) >= _KEPT:
                del self._bindings[next(iter(self._bindings))]
            self._bindings[key] = binding
        return binding


def _resized(lowered, planned, shapes, strides):
    form, outputs = json.loads(lowered.graph.text), set(planned.plan.outputs)
    dims = {entry["uid"]: entry["dims"] for entry in form["tensors"] if "dims" in entry}
    # What a gradient of a bias is summed over does not follow from the bias.
    outputs -= {node["d_bias"] for node in form["nodes"]
                if node["op"] == "sdpa_backward" and "d_bias" in node and dims[node["d_bias"]] != dims[node["bias"]]}
    for entry in form["tensors"]:
        uid = entry["uid"]
        if uid in shapes:
            entry["dims"] = list(shapes[uid])
            entry["strides"] = list(strides.get(uid, entry["strides"]))
        elif uid in outputs or entry.get("virtual"):
            del entry["dims"]  # inferred again, in memory laid out as it was
    graph = Graph.of_text(json.dumps(form))
    graph.validate()
    return Lowered(graph, lowered.own_uids, lowered.tensors)
