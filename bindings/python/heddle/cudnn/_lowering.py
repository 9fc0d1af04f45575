"""A program's graph as heddle.Graph: names made unlike each other, uids that the library takes, score expressions in place."""

import json
from dataclasses import dataclass, field

from heddle import Expression, Graph
from heddle.cudnn._errors import cudnnGraphNotSupportedError
from heddle.cudnn._node import ScoreExpression
from heddle.cudnn._tensor import Tensor
from heddle.cudnn._types import MEMBERS, NAMES, tensor_reordering


@dataclass
class Lowered:
    """A graph of the library. Its uids are the program's own, but for a uid of 0, which the library has no tensor of."""

    graph: Graph
    own_uids: dict[int, int]  # the library's uid -> the program's
    tensors: dict[int, Tensor] = field(default_factory=dict)  # the library's uid -> the tensor, of a program's graph

    def described(self):
        """The library's uid -> the tensor's entry in the text form: after validation everything is inferred."""
        return {entry["uid"]: entry for entry in json.loads(self.graph.text)["tensors"]}

    def adopt(self):
        """Tells the program's tensors what validation inferred."""
        for uid, entry in self.described().items():
            tensor = self.tensors.get(uid)
            if tensor is not None:
                tensor._data_type = MEMBERS[entry["dtype"]]
                tensor._dim, tensor._stride = tuple(entry["dims"]), tuple(entry["strides"])


def lower(graph):
    """Raises heddle.Error for what the library does not take and cudnnGraphNotSupportedError for what is declined."""
    for node in graph._nodes:
        if node.declined:
            raise cudnnGraphNotSupportedError(node.declined)
    return _Lowering(graph).lowered


class _Lowering:
    def __init__(self, graph):
        used = _used_tensors(graph._nodes)
        graph._tensors.find_uids(used)
        uids = {tensor._uid for tensor in used}
        self._zero = next(n for n in range(1, len(uids) + 2) if n not in uids)  # in the place of 0
        self._made, self._names = {}, set()
        target = Graph(graph._name, *(NAMES[kind] for kind in (graph._io, graph._intermediate, graph._compute)))
        self.lowered = Lowered(target, {})
        for tensor in used:
            self._add(tensor)
        for node in graph._nodes:
            target.node(node.op, node.name, **self._fields(node))

    def _add(self, tensor):
        if tensor in self._made:
            return
        if tensor._reordering is not tensor_reordering.NONE:
            raise cudnnGraphNotSupportedError(f"The tensor {tensor._name!r} has the reordering type "
                                              f"{tensor._reordering.name}, expected NONE.")
        if tensor._vector[0] > 1:
            raise cudnnGraphNotSupportedError(f"The tensor {tensor._name!r} has vectors of {tensor._vector[0]} elements, "
                                              "expected single ones.")
        if tensor._data_type not in NAMES:
            raise cudnnGraphNotSupportedError(f"The tensor {tensor._name!r} has the data type {tensor._data_type.name}, "
                                              f"expected one of {', '.join(kind.name for kind in NAMES)}.")
        if tensor._ragged_offset is not None:
            self._add(tensor._ragged_offset)
        uid = tensor._uid or self._zero
        offset = tensor._ragged_offset and self._made[tensor._ragged_offset]
        self._made[tensor] = self.lowered.graph.tensor(
            self._name(tensor), tensor._dim, tensor._stride, NAMES[tensor._data_type], uid=uid, virtual=tensor._virtual,
            by_value=tensor._pass_by_value, constant=tensor._constant, ragged_offset=offset,
            ragged_offset_multiplier=tensor._multiplier)
        self.lowered.own_uids[uid], self.lowered.tensors[uid] = tensor._uid, tensor

    def _name(self, tensor):
        """The library's names are for sentences and unlike each other, a program's need not be."""
        name = tensor._name
        while name and name in self._names:
            name += "'"
        self._names.add(name)
        return name

    def _fields(self, node):
        made, values = dict(self._made), {}
        for name, value in node.fields.items():
            if isinstance(value, ScoreExpression):
                values[name] = self._expression(value, made, f"{node.op} {node.name} {name}")
            elif isinstance(value, dict):
                values[name] = {part: made[one] if isinstance(one, Tensor) else one for part, one in value.items()}
            elif value is not False:  # the library's own default
                values[name] = made[value] if isinstance(value, Tensor) else value
        return values

    def _expression(self, value, made, name):
        """`made` grows: the derivative may read what the expression made."""
        while f"{name}: score" in self._names:
            name += "'"
        self._names.add(f"{name}: score")
        expression = Expression(self.lowered.graph, name=name)
        made[value.score] = expression.score
        for op in value.ops:
            missing = next((one for one in op.inputs if one not in made), None)
            if missing is not None:
                raise ValueError(f"The op {op.mode} of a score expression reads the tensor {missing._name!r} before it is "
                                 "made, expected tensors of the graph and results of earlier ops of the expression.")
            made[op.output] = expression.apply(op.mode, *(made[one] for one in op.inputs), axis=op.axis, **op.numbers)
        if value.result not in made:
            raise ValueError(f"A score expression returns the tensor {value.result._name!r}, expected the score or what an "
                             "op of the expression made.")
        expression.result = made[value.result]
        return expression


def _used_tensors(nodes):
    """Tensors that the library's graph has, each once, in the order of their use: not the values of score expressions."""
    inner = {op.output for node in nodes for value in node.expressions() for op in value.ops}
    inner |= {value.score for node in nodes for value in node.expressions()}
    used = {}
    for node in nodes:
        for tensor in node.tensors():
            used[tensor] = None
        for value in node.expressions():
            for tensor in value.tensors():
                if tensor not in inner:
                    used[tensor] = None
    return list(used)
