"""Graphs put together in Python, through the library's C interface: the one way in which this package makes them."""

import ctypes
import operator
import threading
from collections.abc import Mapping, Sequence
from ctypes import byref, c_bool, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p

from heddle._library import call, load

DTYPES = {None: 0, "f64": 1, "f32": 2, "bf16": 3, "f16": 4, "f8e4m3": 5, "f8e5m2": 6, "i64": 7, "i32": 8, "i8": 9,
          "u64": 10, "u32": 11, "u8": 12, "boolean": 13}
MAX_RANK = 8


class _CTensor(ctypes.Structure):
    """heddle_tensor of include/heddle/heddle.h."""

    _fields_ = [("uid", c_int64), ("name", c_char_p), ("dtype", c_int), ("rank", c_int32), ("stride_rank", c_int32),
                ("dims", c_int64 * MAX_RANK), ("strides", c_int64 * MAX_RANK), ("is_virtual", c_bool),
                ("pass_by_value", c_bool), ("has_constant", c_bool), ("constant", c_double), ("ragged_offset", c_int64),
                ("ragged_offset_multiplier", c_int64)]


class Tensor:
    """A tensor of a graph, which made it: its uid there, which `Plan.execute` takes addresses by, and its name."""

    __slots__ = ("_graph", "name", "uid")

    def __init__(self, graph: "Graph", uid: int, name: str) -> None:
        self._graph, self.uid, self.name = graph, uid, name

    def __repr__(self):
        return f"Tensor(uid={self.uid}, name={self.name!r})"


class Expression:
    """What becomes of each score: pointwise ops from `score` on, for a node's field `score_mod` (or `score_mod_bprop`).

    score: the virtual tensor that stands for scores as the node computes them (or their gradients).
    result: what the node goes on with: the result of the last op, unless it is set.
    name: begins the names of the expression's tensors, which may not be those of another's in the graph.
    """

    def __init__(self, graph: "Graph", dtype: str | None = None, name: str = "") -> None:
        if not isinstance(graph, Graph):
            raise TypeError(f"The graph of an expression is of type {type(graph).__name__}, expected a heddle.Graph.")
        self.graph, self._prefix, self.ops = graph, f"{name}: " if name else "", []
        self.score = self.result = graph.tensor(f"{self._prefix}score", dtype=dtype, virtual=True)

    def apply(self, op: str, *inputs: Tensor, axis: int = 0, **numbers: float) -> Tensor:
        """Appends an op ("add", "tanh_fwd", "cmp_ge", "binary_select", "gen_index" along `axis`, ...).

        numbers: those of an activation, as swish_beta=1.5, by their names in docs/graph-text-form.md.
        """
        self.result = self.graph.tensor(f"{self._prefix}{op} {len(self.ops)}", virtual=True)
        self.ops.append((op, inputs, self.result, axis, numbers))
        return self.result


_TEXTS = threading.Lock()  # a graph's text is its own until the next thread asks for it


class Graph:
    """A graph, empty at first, of tensors and nodes; `Plan` makes it ready for a device.

    io, intermediate, compute: the types of bound tensors, of virtual ones and of arithmetic where nothing else says
    them: "f64", "f32", "bf16", "f16", ...
    """

    def __init__(self, name: str = "", io: str | None = None, intermediate: str | None = None,
                 compute: str | None = None) -> None:
        self.handle, self._uids = c_void_p(), set()  # the handle is the C interface's
        call("heddle_graph_create", _text("A graph's name", name), _dtype(io), _dtype(intermediate), _dtype(compute),
             byref(self.handle))

    @classmethod
    def of_text(cls, text: str) -> "Graph":
        """The graph of a text form (docs/graph-text-form.md); tensors that are added to it need uids."""
        if not isinstance(text, str):
            raise TypeError(f"The graph is of type {type(text).__name__}, expected a Graph or its text form, a str.")
        encoded, handle = text.encode(), c_void_p()
        call("heddle_graph_parse", encoded, len(encoded), byref(handle))
        return cls.of_handle(handle)

    @classmethod
    def of_handle(cls, handle: c_void_p) -> "Graph":
        """The graph of a handle of the C interface, whose owner it becomes; tensors added to it need uids."""
        graph = cls.__new__(cls)
        graph.handle, graph._uids = handle, set()
        return graph

    def __del__(self):
        if getattr(self, "handle", None):
            load().heddle_graph_free(self.handle)

    def tensor(self, name: str = "", dims: Sequence[int] | None = None, strides: Sequence[int] | None = None,
               dtype: str | None = None, *, uid: int | None = None, virtual: bool = False, by_value: bool = False,
               constant: float | None = None, ragged_offset: Tensor | None = None,
               ragged_offset_multiplier: int = 1) -> Tensor:
        """Adds a tensor. Dims, strides (in elements) and types that are not given are inferred.

        uid: how an execution calls it; the next that is free if none is given.
        virtual: an intermediate that nobody binds. by_value: a scalar in host memory. constant: a scalar known now.
        ragged_offset: the tensor of element offsets [B+1, 1, 1, 1], times the multiplier, at which batch entries begin.
        """
        free = next(n for n in range(1, len(self._uids) + 2) if n not in self._uids)
        uid = free if uid is None else _whole("A uid", uid)
        dims, strides = _dims("Dims", dims), _dims("Strides", strides)
        call("heddle_graph_add_tensor", self.handle, byref(_CTensor(
            uid, _text("A tensor's name", name), _dtype(dtype), len(dims), len(strides), (c_int64 * MAX_RANK)(*dims),
            (c_int64 * MAX_RANK)(*strides), virtual, by_value, constant is not None,
            0.0 if constant is None else _number("A constant", constant),
            0 if ragged_offset is None else self._uid("A ragged offset", ragged_offset),
            _whole("A multiplier", ragged_offset_multiplier))))
        self._uids.add(uid)
        return Tensor(self, uid, name)

    def node(self, op: str, name: str = "", **fields: object) -> None:
        """Adds a node: "sdpa", "sdpa_backward", "sdpa_fp8", "sdpa_fp8_backward", "rope", "rope_backward", "rms_norm", "rms_norm_backward",
        "layer_norm", "layer_norm_backward", "cache_append" or "pointwise".

        fields: its ports and attributes by their names in docs/graph-text-form.md. A value is a Tensor, a number, a
        bool, a str (of an enumeration), a sequence of ints (dims), a dict (a group, as
        dropout={"probability": 0.1, "seed": seed}) or an Expression; None stands for what is not set. Raises Error with
        the library's sentence.
        """
        node = c_int32()
        call("heddle_graph_add_node", self.handle, _text("An op", op), _text("A node's name", name), byref(node))
        self._set(node, "", fields)

    @property
    def text(self) -> str:
        """The text form, which `Plan`, the custom call and the `heddle` command take."""
        text = c_char_p()
        with _TEXTS:
            call("heddle_graph_text", self.handle, byref(text))
            return text.value.decode()

    def validate(self) -> None:
        """Infers what is unset and checks every rule of the ops' contracts; raises Error with the one that is broken."""
        call("heddle_graph_validate", self.handle)

    def _uid(self, what, tensor):
        """The uid of one of this graph's own tensors: another's may be that of something else here."""
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{what} is of type {type(tensor).__name__}, expected a Tensor.")
        if tensor._graph is not self:
            raise ValueError(f"{what} is the tensor {tensor.name!r} of another graph.")
        return tensor.uid

    def _set(self, node, group, fields):
        for field, value in fields.items():
            path = _text("A field's name", f"{group}{field}")
            if value is None:
                continue
            if isinstance(value, Mapping):
                self._set(node, f"{group}{field}.", value)
            elif isinstance(value, Expression):
                self._set(node, f"{group}{field}.", {"score_in": value.score, "score_out": value.result})
                for op, inputs, output, axis, numbers in value.ops:
                    uids = (c_int64 * len(inputs))(*(self._uid(f"An input of {op!r}", x) for x in inputs))
                    call("heddle_node_add_pointwise", self.handle, node, path, _text("An op", op), uids, len(inputs),
                         output.uid, axis)
                    self._set(node, f"{group}{field}.ops.", numbers)
            elif isinstance(value, Tensor):
                call("heddle_node_set_tensor", self.handle, node, path, self._uid(f"The field {field!r}", value))
            elif isinstance(value, bool):
                call("heddle_node_set_flag", self.handle, node, path, value)
            elif isinstance(value, str):
                call("heddle_node_set_choice", self.handle, node, path, _text(f"The field {field!r}", value))
            elif isinstance(value, Sequence):
                dims = _dims(f"The field {field!r}", value)
                call("heddle_node_set_dims", self.handle, node, path, (c_int64 * len(dims))(*dims), len(dims))
            elif hasattr(value, "__index__"):
                call("heddle_node_set_integer", self.handle, node, path, _whole(f"The field {field!r}", value))
            elif hasattr(value, "__float__"):
                call("heddle_node_set_number", self.handle, node, path, float(value))
            else:
                raise TypeError(f"The field {field!r} is of type {type(value).__name__}, expected a Tensor, a number, a "
                                "bool, a str, ints, a dict or an Expression.")


def _text(what, value):
    if not isinstance(value, str):
        raise TypeError(f"{what} is of type {type(value).__name__}, expected a str.")
    if "\0" in value:
        raise ValueError(f"{what} is {value!r}, expected no null character.")
    return value.encode()


def _number(what, value):
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{what} is an int of {value.bit_length()} bits, expected a number that a float holds.") from None
    except (TypeError, ValueError):
        raise TypeError(f"{what} is of type {type(value).__name__}, expected a number.") from None


def _dtype(name):
    if not (name is None or isinstance(name, str)) or name not in DTYPES:
        raise ValueError(f"There is no data type {name!r}, expected one of {', '.join(filter(None, DTYPES))}.")
    return DTYPES[name]


def _whole(what, value):
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is of type {type(value).__name__}, expected an int.") from None
    if not -2**63 <= value < 2**63:
        raise ValueError(f"{what} is {value}, expected 64 bits.")
    return value


def _dims(what, given):
    try:
        given = () if given is None else tuple(given)
    except TypeError:
        raise TypeError(f"{what} are of type {type(given).__name__}, expected a sequence of ints.") from None
    dims = [_whole(what, dim) for dim in given]
    if len(dims) > MAX_RANK:
        raise ValueError(f"{what} are {len(dims)} numbers, expected {MAX_RANK} at most.")
    return dims
