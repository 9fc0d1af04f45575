"""What a user's score function does to a score, as a list of pointwise ops.

The function is traced once over the types of all scores; only ops that act on each score alone are allowed. What does
not depend on the scores, rows and columns is computed outside, and becomes an operand that is loaded where it is used.
"""

import math
from contextlib import nullcontext
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from heddle.jax import _compat, _internals, _whole_numbers
from heddle.jax._whole_numbers import Range

OP = "attention"

POINTWISE = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "max": "max", "min": "min", "pow": "pow",
             "neg": "neg", "abs": "abs", "rem": "mod", "exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt",
             "tanh": "tanh_fwd", "logistic": "sigmoid_fwd", "erf": "erf", "sin": "sin", "cos": "cos", "tan": "tan",
             "floor": "floor", "ceil": "ceil", "eq": "cmp_eq", "ne": "cmp_neq", "lt": "cmp_lt", "le": "cmp_le",
             "gt": "cmp_gt", "ge": "cmp_ge", "and": "logical_and", "or": "logical_or", "not": "logical_not"}
PASSED_ON = ("copy", "copy_p", "reduce_precision", "reshard")
# Inside shard_map: what says that a value differs over a mesh axis.
VARIED = ("pvary", "pcast")
CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr",
         "custom_vjp_call": "call_jaxpr", "core_call": "call_jaxpr"}
# Calls whose results have a derivative of their own, and what stops one.
OWN_DERIVATIVES = ("custom_jvp_call", "custom_vjp_call", "stop_gradient")
FLAT = ("cmp_eq", "cmp_neq", "cmp_lt", "cmp_le", "cmp_gt", "cmp_ge", "logical_and", "logical_or", "logical_not", "floor", "ceil")
LOG2 = math.log(2.0)


class Program(NamedTuple):
    """ops: (name, inputs) in order; an input is ("op", n), ("load", n of the captures), ("number", x), or "score", "row"
    and "column" on their own. The result is one of these inputs, but no load and no number.

    own_derivative: what has a derivative in JAX that is not that of the ops, where the result's goes through it, or None.
    """

    ops: tuple
    result: tuple
    captures: int
    own_derivative: str | None


class _Known:
    """A value that does not depend on the scores: `array` broadcasts to `shape`, with 1 where it is repeated."""

    def __init__(self, array, shape):
        self.array, self.shape = array, tuple(shape)

    def whole(self):
        return jnp.broadcast_to(self.array, self.shape)

    def known_now(self):
        return not isinstance(self.array, jax.core.Tracer)


def _refuse(name):
    raise ValueError(f"{OP}: score uses {name}, expected arithmetic, comparisons and selections of single scores; their "
                     "sums, products and reorderings are not possible.")


# What is known when tracing is computed then, if it is no larger: a number in the call, or an array to load ready made.
FOLDED = 2**16


class _Trace:
    def __init__(self, rows, columns):
        self.ops, self.captures = [], []
        self.ranges = {("row",): Range(0, rows - 1), ("column",): Range(0, columns - 1)}  # of whole numbers
        self.own_derivatives = {}  # of an op's number what gives its value another derivative in JAX
        self.shares_ties = True  # whether max and min are JAX's primitives, whose derivative equal values share
        # By the identity of known values, so that what is used twice is computed once and loaded from one operand.
        self.loads, self.computed = {}, {}

    def emit(self, name, *inputs):
        self.ops.append((name, inputs))
        return ("op", len(self.ops) - 1)

    def load(self, value):
        """A value as an op's input. Knowns of one element known now are numbers."""
        if not isinstance(value, _Known):
            return value
        array = value.array
        if array.size == 1 and value.known_now():
            return ("number", float(np.asarray(array).reshape(()).astype(np.float64)))
        if id(value) not in self.loads:
            self.loads[id(value)] = len(self.captures), value
            self.captures.append(jnp.reshape(array, (1,) * (4 - array.ndim) + array.shape))
        return ("load", self.loads[id(value)][0])

    def run(self, jaxpr, consts, arguments):
        values = dict(zip(jaxpr.constvars, (_Known(x, np.shape(x)) for x in consts)))
        values.update(zip(jaxpr.invars, arguments))

        def read(atom):
            return _Known(np.asarray(atom.val), atom.aval.shape) if isinstance(atom, Literal) else values[atom]

        for eqn in jaxpr.eqns:
            inputs = [read(atom) for atom in eqn.invars]
            values.update(zip(eqn.outvars, self.equation(eqn, inputs)))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn, inputs):
        name = eqn.primitive.name
        if name in CALLS:
            inner = eqn.params[CALLS[name]]
            if name not in OWN_DERIVATIVES:
                return self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs)
            is_jaxs, before = _internals.is_own_call(eqn), self.shares_ties
            self.shares_ties = before and not is_jaxs
            found = self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs)
            self.shares_ties = before
            return found if is_jaxs else [self.marked(name, one) for one in found]
        if name == "optimization_barrier":  # of any number of values
            return inputs
        if all(isinstance(x, _Known) for x in inputs):
            key = name, str(eqn.params), *map(id, inputs)
            if key not in self.computed:
                largest = max(math.prod(x.aval.shape) for x in (*eqn.invars, *eqn.outvars))
                now = largest <= FOLDED and name not in VARIED and all(x.known_now() for x in inputs)
                with jax.ensure_compile_time_eval() if now else nullcontext():
                    self.computed[key] = self.outside(eqn, inputs), inputs  # kept, and so their identities
            return self.computed[key][0]
        made = self.inside(eqn, name, inputs)
        self.check_whole_numbers(eqn, name, inputs, made)
        return [made]

    def marked(self, name, value):
        """A value whose derivative in JAX is another than that of the ops it is made by."""
        if isinstance(value, _Known) or value in self.ranges:
            return value
        made = self.emit("identity", value)
        self.own_derivatives[made[1]] = name
        return made

    def own_derivative(self, result):
        """What in the result's derivative by the scores is another in JAX, or None."""
        for value in self.reached(result, FLAT):
            name = self.own_derivatives.get(value[1]) if value[0] == "op" else None
            if name and ("score",) in self.reached(value, FLAT if name == "stop_gradient" else ()):
                return name
        return None

    def reached(self, value, flat):
        """A value and all that it depends on, otherwise than through ops of `flat` and conditions where there are some."""
        found, left = set(), [value]
        while left:
            one = left.pop()
            if one in found:
                continue
            found.add(one)
            name, inputs = self.ops[one[1]] if one[0] == "op" else ("", ())
            if name not in flat:
                left += inputs[1:] if flat and name == "binary_select" else inputs
        return found

    def check_whole_numbers(self, eqn, name, inputs, made):
        """Raises ValueError where XLA's whole numbers are others than a graph's."""
        ranges = [self.range_of(value, atom.aval.dtype) for value, atom in zip(inputs, eqn.invars)]
        found, wrong = _whole_numbers.range_after(name, eqn.params, ranges, eqn.outvars[0].aval.dtype)
        if wrong is not None:
            raise ValueError(f"{OP}: score {wrong}, expected whole numbers that their type and a float of 32 bits hold.")
        if found is not None:
            self.ranges[made] = found

    def range_of(self, value, dtype):
        if not jnp.issubdtype(dtype, jnp.integer):
            return None
        if isinstance(value, _Known):
            return _whole_numbers.of_array(value.array, value.known_now())
        return self.ranges[value]

    def with_ties(self, name, x, ends_known):
        """max, min or abs of scores with the derivative that JAX gives it where two values are equal: a half of each, and 1 of
        |0|. In functions of JAX's own, as relu, a number has all of it, where a graph gives it to the first."""
        if name == "abs":
            is_more = self.emit("cmp_ge", x[0], ("number", 0.0))
            return self.emit("binary_select", is_more, x[0], self.emit("neg", x[0]))
        if not self.shares_ties:
            return self.emit(name, *(reversed(x) if ends_known else x))
        halves = self.emit("add", *(self.emit("mul", one, ("number", 0.5)) for one in x))
        return self.emit("binary_select", self.emit("cmp_eq", *x), halves, self.emit(name, *x))

    def outside(self, eqn, inputs):
        """An op of values that do not depend on the scores: XLA's, and unrepeated if it acts on single elements."""
        name, shape = eqn.primitive.name, eqn.outvars[0].aval.shape
        if name == "broadcast_in_dim":
            compact = [1] * len(shape)
            for dim, size in zip(eqn.params["broadcast_dimensions"], np.shape(inputs[0].array)):
                compact[dim] = size
            return [_Known(jnp.reshape(inputs[0].array, compact), shape)]
        if name == "reshard":
            return inputs
        if name in VARIED:
            return [_Known(_compat.as_varying(inputs[0].array, _compat.varying_axes(eqn.outvars[0].aval)), shape)]
        elementwise = name in POINTWISE or name in ("select_n", "convert_element_type", "integer_pow", "square", "sign")
        if elementwise and all(x.shape == shape for x in inputs):
            arrays = jnp.broadcast_arrays(*(x.array for x in inputs))
            return [_Known(eqn.primitive.bind(*arrays, **_free_of_sharding(eqn.params)), shape)]
        found = eqn.primitive.bind(*(x.whole() for x in inputs), **eqn.params)
        found = found if eqn.primitive.multiple_results else [found]
        return [_Known(x, x.shape) for x in found]

    def inside(self, eqn, name, inputs):
        kinds = [atom.aval.dtype for atom in eqn.invars]
        if name == "broadcast_in_dim":
            if tuple(eqn.params["broadcast_dimensions"]) == tuple(range(4)) and len(eqn.params["shape"]) == 4:
                return inputs[0]
            _refuse("broadcast_in_dim of the scores")
        if name in PASSED_ON or name in VARIED:
            return inputs[0]
        if name == "stop_gradient":
            return self.marked(name, inputs[0])
        if name == "convert_element_type":
            to, given = eqn.outvars[0].aval.dtype, kinds[0]
            if jnp.issubdtype(to, jnp.floating) and to.itemsize >= 4 or jnp.issubdtype(given, jnp.integer) and \
                    jnp.issubdtype(to, jnp.integer):
                return inputs[0]
            _refuse(f"a conversion of {given} to {to}")
        x = [self.load(value) for value in inputs]
        if name in ("div", "and", "or", "not") and not all(
                jnp.issubdtype(kind, jnp.floating if name == "div" else jnp.bool_) for kind in kinds) or \
                name == "pow" and jnp.issubdtype(kinds[0], jnp.integer):
            _refuse(f"{name} of integers")
        if name in ("max", "min", "abs") and jnp.issubdtype(kinds[0], jnp.floating) and any(
                ("score",) in self.reached(one, FLAT) for one in x):
            return self.with_ties(name, x, isinstance(inputs[-1], _Known))
        if name == "rem" and jnp.issubdtype(kinds[0], jnp.integer):  # by 0 it is the number itself
            by_zero = self.emit("cmp_eq", x[1], ("number", 0.0))
            return self.emit("binary_select", by_zero, x[0], self.emit("mod", *x))
        if name in POINTWISE:
            return self.emit(POINTWISE[name], *x)
        if name == "select_n" and len(x) == 3:
            return self.emit("binary_select", x[0], x[2], x[1])
        if name == "clamp":
            return self.emit("min", x[2], self.emit("max", x[0], x[1]))
        if name == "square":
            return self.emit("mul", x[0], x[0])
        if name == "integer_pow" and 1 <= eqn.params["y"] <= 8:
            product = x[0]
            for _ in range(eqn.params["y"] - 1):
                product = self.emit("mul", product, x[0])
            return product
        if name == "exp2":
            return self.emit("exp", self.emit("mul", x[0], ("number", LOG2)))
        _refuse(name)


def _free_of_sharding(params):
    return {key: None if key == "sharding" else value for key, value in params.items()}


def traced(score, extents, dtype):
    """The program of a score function and the arrays that it loads, [B or 1, N or 1, T or 1, S or 1] each. Scores are of
    `dtype`.

    Raises TypeError if it is not callable, ValueError if it does what a pointwise program cannot.
    """
    if not callable(score):
        raise TypeError(f"{OP}: score is {type(score).__name__}, expected a function of scores, batch, head, row and "
                        "column.")
    b, n, t, s = extents
    index = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
    try:
        closed = jax.make_jaxpr(score)(jax.ShapeDtypeStruct(extents, dtype), index(b, 1, 1, 1), index(1, n, 1, 1),
                                       index(1, 1, t, 1), index(1, 1, 1, s))
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError  # JAX's own take other arguments
        raise kind(f"{OP}: score cannot be traced as a function of scores, batch, head, row and column: "
                        f"{error}") from error
    outputs = closed.out_avals
    if len(outputs) != 1 or outputs[0].shape != tuple(extents) or not jnp.issubdtype(outputs[0].dtype, jnp.floating):
        given = ", ".join(str(x) for x in outputs)
        raise ValueError(f"{OP}: score returns {given}, expected scores of shape {tuple(extents)}.")
    trace = _Trace(t, s)
    batch = _Known(np.arange(b, dtype=np.int32).reshape(b, 1, 1, 1), (b, 1, 1, 1))
    head = _Known(np.arange(n, dtype=np.int32).reshape(1, n, 1, 1), (1, n, 1, 1))
    result, = trace.run(closed.jaxpr, closed.consts, [("score",), batch, head, ("row",), ("column",)])
    result = trace.load(result)
    if result[0] in ("load", "number"):  # a graph's score is made by an op
        result = trace.emit("mul", result, ("number", 1.0))
    return Program(tuple(trace.ops), result, len(trace.captures), trace.own_derivative(result)), trace.captures


def apply(program, captures, score):
    """Appends a program to an expression, a heddle.Expression. captures: the tensors that it loads."""
    made, before, known = [], score.result, {}

    def once(kind, which):
        if kind == "number":
            return score.graph.tensor(dims=(1, 1, 1, 1), dtype="f32", constant=which)
        return score.apply("gen_index", axis={"row": 2, "column": 3}[kind])

    def find(kind, which=None):
        if kind == "score":
            return before
        if kind in ("op", "load"):
            return {"op": made, "load": captures}[kind][which]
        if (kind, which) not in known:
            known[kind, which] = once(kind, which)
        return known[kind, which]

    for name, inputs in program.ops:
        made.append(score.apply(name, *(find(*x) for x in inputs)))
    score.result = find(*program.result)
