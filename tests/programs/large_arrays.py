"""Arrays as large as the scores of a call that a fused module computes, and what each of them is for.

Fusing is to leave none that only the attention needed. What may stay is an operand of a call, which the program itself
made (a bias that is looked up, cells that dropout keeps, by numbers that no call draws), the gradient of one, which a
call gave, what the program returns, and what has such dims by chance, rows on their way into a call or out of one. All
else is left over.
"""

import json
import math
import re
from collections import defaultdict
from typing import NamedTuple

# The ports of a graph's nodes that have a row for each query or key.
ROWS = ("q", "k", "v", "o", "d_o", "x", "y", "stats", "max", "sum_exp")


MOVES = ("reshape", "transpose", "bitcast", "copy", "convert")
NO_ARITHMETIC = ("parameter", "tuple", "get-tuple-element", "while", "conditional", "call", "root")


class Found(NamedTuple):
    left: list[str]  # a sentence for each array that is left over
    operands: list[str]  # what calls are given of such arrays: "bias", "dropout mask", "term"


class Instruction(NamedTuple):
    dims: list[tuple]  # of its array, or of each of its tuple
    op: str
    operands: list[str]
    attributes: str


def large_arrays(text: str, fusions: list) -> Found:
    """What a fused module, as text, has of them; `fusions` are those of the rewriter's report."""
    flow = _Flow(text)
    sizes = {(f["q_len"], f["kv_len"], f["batch"] * f["q_heads"] * f["q_len"] * f["kv_len"]) for f in fusions}
    sizes = [size for size in sizes if min(size[:2]) > 1]
    shaped = flow.moved({array for array, dims in flow.arrays.items() if any(_has_both(dims, *size) for size in sizes)})
    into = _labels(flow.back, shaped, flow.ports)
    of_calls = _labels(flow.ways, shaped, {array: {"a result"} for array in flow.results})
    # What meets a call's result in one instruction takes part in the gradient of an operand.
    gradients = {after for array, labels in of_calls.items() if labels for after in flow.ways[array]}
    of_gradients = _labels(flow.back, shaped, {array: {"a gradient"} for after in gradients for array in flow.back[after] & shaped})
    returned = _labels(flow.back, shaped, {array: {"a result of the program"} for array in flow.returned})
    left, operands = [], set()
    for array in shaped:
        instruction, dims = flow.instruction(array), flow.arrays[array]
        if instruction.op in NO_ARITHMETIC or not any(_is_as_large(dims, *size) for size in sizes):
            continue
        what = f"{array[1]} = {instruction.op} of {list(dims)}"
        operands |= {port for port in into[array] if port not in ROWS}
        if not (into[array] or of_calls[array] or of_gradients[array] or returned[array]):
            left.append(f"{what} is for no call")
    return Found(sorted(left), sorted(operands))


def computations(text: str) -> dict[str, dict[str, Instruction]]:
    """The instructions of a module's text by the names of their computations and their own."""
    found, body = {}, None
    for line in text.splitlines():
        if heading := re.match(r"(?:ENTRY )?%?([\w.-]+) (?:\(.*\) -> .* )?\{$", line):
            body = found[heading[1]] = {}
        elif given := re.match(r"\s+(ROOT )?%?([\w.-]+) = (.*)", line):
            shape, rest = _shape(re.sub(r"/\*.*?\*/", "", given[3]))
            op, rest = rest.split("(", 1)
            inside = _until_closed(rest)
            names = re.findall(r"%?([\w.-]+)(?:, |$)", inside) if op not in ("constant", "parameter") else [inside]
            body[given[2]] = Instruction([_dims(one) for one in re.findall(r"\w+\[[\d,]*\]|token\[\]", shape)], op.strip(), names,
                                         rest[len(inside) + 1:])
            if given[1]:
                body[""] = body[given[2]]._replace(op="root", operands=[given[2]])
    return found


def _shape(text):
    end = len(_until_closed(text[1:])) + 2 if text[0] == "(" else text.index(" ")
    return text[:end], text[end:].strip()


def _until_closed(text):
    depth = 0
    for i, c in enumerate(text):
        depth += (c in "({[") - (c in ")}]")
        if depth < 0:
            return text[:i]
    raise ValueError(f"nothing closes {text[:80]}")


def _dims(shape):
    return tuple(int(n) for n in re.findall(r"\d+", shape.partition("[")[2]))


def _has_both(dims, rows, keys, count):
    """Whether an array has both axes: apart, as one, or as one with those of batch and heads."""
    rest = list(dims)
    if rows in rest:
        rest.remove(rows)
    apart = len(rest) < len(dims) and keys in rest and (len(dims) > 2 or rows * keys == count)
    return apart or rows * keys in dims or count in dims


def _is_as_large(dims, rows, keys, count):
    """Whether it may be an array of the scores, all of them: of fewer dims than three only those of just their size."""
    size = math.prod(dims)
    return _has_both(dims, rows, keys, count) and (size == count or size > count and len(dims) > 3)


def _labels(ways, among, ends):
    """Of each array in `among` the labels of the ends that lead to it by `ways` through such arrays."""
    labels, waiting = defaultdict(set), [(end, label) for end, named in ends.items() for label in named]
    while waiting:
        array, label = waiting.pop()
        if label not in labels[array]:
            labels[array].add(label)
            waiting += [(after, label) for after in ways[array] if after in among]
    return labels


class _Flow:
    """The arrays of a module, (computation, instruction, element of its tuple), and the ways among them."""

    def __init__(self, text):
        self.computations = computations(text)
        entry = re.search(r"^ENTRY %?([\w.-]+)", text, re.MULTILINE)[1]
        self.arrays, self.ways, self.back = {}, defaultdict(set), defaultdict(set)
        self.ports, self.results = defaultdict(set), set()
        for computation, body in self.computations.items():
            for name, instruction in body.items():
                self.arrays |= {(computation, name, i): dims for i, dims in enumerate(instruction.dims)}
        self.returned = {array for array in self.arrays if array[:2] == (entry, "")}
        for computation, body in self.computations.items():
            for name, instruction in body.items():
                self._connect(computation, name, instruction)

    def _connect(self, computation, name, instruction):
        op, operands = instruction.op, [(computation, operand) for operand in instruction.operands]
        here = computation, name
        if op == "tuple":
            for i, operand in enumerate(operands):
                self._way((*operand, 0), (*here, i))
        elif op == "get-tuple-element":
            self._way((*operands[0], int(re.search(r"index=(\d+)", instruction.attributes)[1])), (*here, 0))
        elif op in ("while", "conditional", "call"):
            bodies = self._called(instruction.attributes)
            given = operands[1:] if op == "conditional" else operands * len(bodies) if op == "while" else None
            for i, body in enumerate(bodies):
                parameters = {one.operands[0]: (body, other) for other, one in self.computations[body].items() if one.op == "parameter"}
                for number, parameter in parameters.items():
                    self._same(given[i] if given else operands[int(number)], parameter)
                self._same((body, ""), here)
            if op == "while":
                self._same(operands[0], here)
                for body in bodies:
                    self._same((body, ""), next((body, other) for other, one in self.computations[body].items() if one.op == "parameter"))
        elif op == "custom-call" and 'custom_call_target="heddle"' in instruction.attributes:
            self.results |= {(*here, i) for i in range(len(instruction.dims))}
            for operand, port in zip(operands, _ports(instruction.attributes)):
                self.ports[*operand, 0].add(port)
        elif op not in ("parameter", "constant"):
            for operand in operands:
                if op in ("root", "opt-barrier", "copy"):
                    self._same(operand, here)
                else:
                    for i in range(len(instruction.dims)):
                        self._way((*operand, 0), (*here, i))

    def instruction(self, array):
        return self.computations[array[0]][array[1]]

    def moved(self, arrays):
        """These arrays, and all that holds the numbers of one of them in another order."""
        found = set(arrays)
        for array in self.arrays:  # in the order of the text: what is moved comes first
            if self.instruction(array).op in MOVES and self.back[array] & found:
                found.add(array)
        return found

    def _called(self, attributes):
        branches = re.search(r"branch_computations=\{([^}]*)\}", attributes)
        names = branches[1].split(", ") if branches else re.findall(
            r"\b(?:body|condition|to_apply|true_computation|false_computation)=(%?[\w.-]+)", attributes)
        return [name.lstrip("%") for name in names]

    def _same(self, before, after):
        """All elements of one are those of the other."""
        for i in range(len(self.computations[after[0]][after[1]].dims)):
            self._way((*before, i), (*after, i))

    def _way(self, before, after):
        if before in self.arrays and after in self.arrays:
            self.ways[before].add(after)
            self.back[after].add(before)


def _ports(attributes):
    """What each operand of a call is: its port where that is one of rows, else its tensor's name without a number."""
    text = re.search(r'graph\s*=\s*("(?:[^"\\]|\\.)*")', attributes)[1]
    graph = json.loads(json.loads(text.replace("\\22", '\\"')))  # as MLIR escapes it, or as HLO does
    names = {tensor["uid"]: tensor.get("name", "") for tensor in graph["tensors"]}
    for node in graph["nodes"]:
        names |= {uid: port for port, uid in node.items() if port in ROWS}
    return [re.sub(r" \d+$", "", names[uid]).lower() for uid in sorted(names)]
