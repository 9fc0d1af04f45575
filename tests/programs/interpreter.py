"""What a JAX program means: its jaxpr evaluated by numpy, every float in f64 or rounded as the program's own types are.

Nothing of Heddle and nothing of XLA's compiler is in it, so it can judge both. Operations on integers wrap as the program's
own types do in either way. What numpy has no plain function for (gathers, sorts, fast Fourier transforms) JAX runs one
operation at a time, in f64.
"""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
UNIT = {np.dtype(np.float16): 2.0**-11, BF16: 2.0**-8, np.dtype(np.float32): 2.0**-24, np.dtype(np.float64): 2.0**-53}


def is_float(dtype):
    return jnp.issubdtype(dtype, np.floating)


def is_key(dtype):
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def in_f64(x):
    """An array as the interpreter holds it: floats widened, keys as their words."""
    if is_key(getattr(x, "dtype", np.dtype(bool))):
        return np.asarray(jax.random.key_data(x))
    x = np.asarray(x)
    return x.astype(np.float64) if is_float(x.dtype) else x.astype(np.complex128) if x.dtype.kind == "c" else x


class Exactly:
    """Every float is an f64, whatever type the program names."""

    def __call__(self, x, dtype, sensitivity=0.0):
        return x

    def converted(self, x, dtype):
        return x

    def result(self, eqn, operands, x):
        """A result as it is kept."""
        return x


class InOwnTypes:
    """Every result is rounded to its type, after a disturbance too small to change what the type holds exactly.

    Two such evaluations with different seeds differ as two compilations of one program may: by roundings.
    """

    # Of finite operands they may give an infinity that no mask means: exponentials without their maximum, and the squares
    # of their sums in a gradient, whose reciprocals are lost below the smallest normal number.
    GROWING = {"exp", "exp2", "integer_pow", "mul", "square"}

    def __init__(self, seed):
        self._random = np.random.default_rng(seed)
        self.overflowed = False

    def __call__(self, x, dtype, sensitivity=0.0):
        """x as a result of arithmetic; `sensitivity` is what its own roundings on the way may add up to."""
        unit = UNIT.get(np.dtype(dtype), 2.0**-24)
        wobble = self._random.uniform(-1, 1, np.shape(x))
        with np.errstate(all="ignore"):
            disturbance = wobble * (0.3 * unit * np.abs(x) + sensitivity)
            x = np.where(np.isfinite(disturbance), x + disturbance, x)
        return self.converted(x, dtype)

    def converted(self, x, dtype):
        with np.errstate(all="ignore"):
            return np.asarray(x).astype(np.float32).astype(dtype).astype(np.float64) if dtype.itemsize < 4 else \
                np.asarray(x).astype(dtype).astype(np.float64)

    def result(self, eqn, operands, x):
        if eqn.primitive.name in self.GROWING and np.any(x == np.inf):
            finite = functools.reduce(np.logical_and, (np.isfinite(y) for y in operands))
            self.overflowed |= bool(np.any((x == np.inf) & finite))
        if eqn.primitive.name == "integer_pow" and eqn.params["y"] < 0:
            self.overflowed |= bool(np.any((np.abs(x) < np.finfo(np.float32).tiny) & np.isfinite(operands[0])))
        return x


class Coarsely(InOwnTypes):
    """As in its own types, and what comes of an exponential is disturbed as if computed with a unit as coarse as said: what a
    computation in narrow types is off by, where the program goes on in wide ones."""

    ARITHMETIC = {"exp", "exp2", "mul", "div", "add", "sub", "add_any", "dot_general", "reduce_sum"}

    def __init__(self, seed, unit):
        super().__init__(seed)
        self._unit, self._after = unit, {}

    def result(self, eqn, operands, x):
        name = eqn.primitive.name
        if x.dtype.kind != "f" or not (name in ("exp", "exp2") or any(id(y) in self._after or id(y.base) in self._after
                                                                       for y in operands)):
            return x
        if name in self.ARITHMETIC:
            x = x * (1 + 0.5 * self._unit * self._random.uniform(-1, 1, x.shape))
        self._after[id(x)] = x
        return x


def evaluate(closed, arguments, rounding):
    """The results of a closed jaxpr, floats as f64 arrays."""
    with np.errstate(all="ignore"):
        return _run(closed.jaxpr, [in_f64(c) for c in closed.consts], [in_f64(x) for x in arguments], rounding)


def coarsest(jaxpr, given=None):
    """The unit of the coarsest float of 16 bits or more that a jaxpr computes from floats that it is given (of indices in
    narrow floats the roundings are the program's meaning)."""
    is_inexact = lambda v: jnp.issubdtype(v.aval.dtype, np.inexact)
    of_floats = {v for i, v in enumerate(jaxpr.invars) if is_inexact(v) and (given is None or given[i])}
    unit = UNIT[np.dtype(np.float64)]
    for eqn in jaxpr.eqns:
        given = [not hasattr(x, "val") and x in of_floats for x in eqn.invars]
        if not any(given):
            continue
        floats = [v for v in eqn.outvars if is_inexact(v)]
        of_floats.update(floats)
        unit = max([unit, *(UNIT.get(v.aval.dtype, 0) for v in floats)])
        for inner in _inner(eqn):
            same = given if len(inner.invars) == len(given) else None
            unit = max(unit, coarsest(inner, same))
    return unit


def _inner(eqn):
    for value in eqn.params.values():
        for x in value if isinstance(value, (tuple, list)) else [value]:
            x = getattr(x, "jaxpr", x)
            if hasattr(x, "eqns"):
                yield x


def _run(jaxpr, constants, arguments, rounding):
    values = {}

    def read(atom):
        if hasattr(atom, "val"):  # a literal
            dtype = atom.aval.dtype
            value = np.asarray(atom.val)
            return value.astype(dtype).astype(np.float64) if is_float(dtype) else value.astype(dtype)
        return values[atom]

    values.update(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for eqn in jaxpr.eqns:
        operands = [read(x) for x in eqn.invars]
        rule = RULES.get(eqn.primitive.name, _by_jax)
        results = rule(eqn, rounding, *operands)
        results = results if isinstance(results, (list, tuple)) else [results]
        for variable, result in zip(eqn.outvars, results, strict=True):
            assert np.shape(result)[:len(variable.aval.shape)] == variable.aval.shape, (eqn, np.shape(result))
            values[variable] = rounding.result(eqn, operands, np.asarray(result))
    return [read(x) for x in jaxpr.outvars]


RULES = {}


def rule(*names):
    def add(function):
        for name in names:
            RULES[name] = function
        return function

    return add


def _type(eqn, i=0):
    return eqn.outvars[i].aval.dtype


def _settled(eqn, rounding, x):
    """A result of arithmetic in its type: rounded if a float, wrapped if an integer."""
    dtype = _type(eqn)
    if dtype.kind == "c":
        return np.asarray(x)  # only ever in between
    return rounding(np.asarray(x, np.float64), dtype) if is_float(dtype) else np.asarray(x).astype(dtype)


def elementwise(name, function):
    RULES[name] = lambda eqn, rounding, *x: _settled(eqn, rounding, function(*x))


def _divided(a, b):
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, 1, b)
    quotient = np.abs(a.astype(np.int64)) // np.abs(safe.astype(np.int64))
    return np.where(b == 0, -1, quotient * np.sign(a.astype(np.int64)) * np.sign(safe.astype(np.int64)))


def _remainder(a, b):
    return np.fmod(a, b) if a.dtype.kind == "f" else np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b)))


def _shifted(function):
    def shift(a, b):
        bits = a.dtype.itemsize * 8
        return np.where(b.astype(np.int64) >= bits, 0, function(a, np.minimum(b, bits - 1).astype(a.dtype)))

    return shift


def _logically(a, b):
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return (a.view(unsigned) >> b.astype(unsigned)).view(a.dtype)


def _erf(x):
    import math
    return np.vectorize(math.erf, otypes=[np.float64])(x) if np.size(x) else x


def _logistic(x):
    return 1 / (1 + np.exp(-x))


_PLAIN = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divided, "rem": _remainder, "neg": np.negative,
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "tanh": np.tanh,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "logistic": _logistic, "erf": _erf, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "atan2": np.arctan2, "pow": np.power, "square": np.square,
    "add_any": np.add, "sinh": np.sinh, "cosh": np.cosh, "erfc": lambda x: 1 - _erf(x),
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "shift_left": _shifted(np.left_shift), "shift_right_logical": _shifted(_logically),
    "shift_right_arithmetic": lambda a, b: np.right_shift(a, np.minimum(b, a.dtype.itemsize * 8 - 1).astype(a.dtype)),
}
for _name, _function in _PLAIN.items():
    elementwise(_name, _function)

# What is one of its operands' values, or follows from their signs, is exact in every type.
_EXACT = {
    "max": np.maximum, "min": np.minimum, "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "is_finite": np.isfinite, "copy": lambda x: x, "copy_p": lambda x: x, "stop_gradient": lambda x: x,
    "real": np.real, "imag": np.imag, "complex": lambda x, y: x + 1j * y, "conj": np.conj, "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "pvary": lambda x: x, "optimization_barrier": lambda *x: list(x), "psum_invariant": lambda *x: list(x),
    "psum": lambda *x: list(x), "psum2": lambda *x: list(x), "pcast": lambda x: x, "pbroadcast": lambda *x: list(x),
    "pmax": lambda *x: list(x), "name": lambda x: x, "reduce_and": None, "sharding_constraint": lambda x: x,
    "random_wrap": lambda x: x, "random_unwrap": lambda x: x, "axis_index": lambda: np.int32(0),
}
del _EXACT["reduce_and"]
for _name, _function in _EXACT.items():
    RULES[_name] = lambda eqn, rounding, *x, _function=_function: _function(*x)


@rule("round")
def _(eqn, rounding, x):
    nearest_even = "EVEN" in str(eqn.params["rounding_method"])
    return np.rint(x) if nearest_even else np.where(np.abs(x) % 1 == 0.5, np.sign(x) * np.ceil(np.abs(x)), np.rint(x))


@rule("integer_pow")
def _(eqn, rounding, x):
    y = eqn.params["y"]
    return _settled(eqn, rounding, x**y if y >= 0 or x.dtype.kind != "f" else 1 / x**-y)


@rule("convert_element_type")
def _(eqn, rounding, x):
    dtype = np.dtype(eqn.params["new_dtype"])
    if is_float(dtype):
        return rounding.converted(x.astype(np.float64), dtype)
    if dtype == np.bool_:
        return x != 0
    if x.dtype.kind == "f":  # as XLA's CPU converts: towards zero, NaN to 0, out of range to the nearest of 32 bits, then cut
        limits = np.iinfo(dtype if dtype.itemsize >= 4 else np.int32)
        wide = np.dtype(limits.dtype)
        whole = np.clip(np.nan_to_num(np.trunc(x), nan=0.0, posinf=np.inf, neginf=-np.inf), limits.min, limits.max)
        top = whole >= float(limits.max)
        return np.where(top, limits.max, np.where(top, 0, whole).astype(wide)).astype(dtype)
    return x.astype(dtype)


@rule("reduce_precision")
def _(eqn, rounding, x):
    types = {(8, 7): BF16, (5, 10): np.dtype(np.float16), (8, 23): np.dtype(np.float32), (11, 52): np.dtype(np.float64)}
    return rounding.converted(x, types[eqn.params["exponent_bits"], eqn.params["mantissa_bits"]])


@rule("bitcast_convert_type")
def _(eqn, rounding, x):
    source, target = np.dtype(eqn.invars[0].aval.dtype), np.dtype(eqn.params["new_dtype"])
    x = (x.astype(source) if is_float(source) else x).view(target)
    return x.astype(np.float64) if is_float(target) else x


@rule("select_n")
def _(eqn, rounding, which, *cases):
    return np.choose(which.astype(np.int64), cases) if len(cases) > 2 else np.where(which, cases[-1], cases[0])


@rule("dot_general")
def _(eqn, rounding, a, b):
    (a_contracted, b_contracted), (a_batch, b_batch) = eqn.params["dimension_numbers"]
    dtype = _type(eqn)

    def sorted_axes(x, batch, contracted, contracted_last):
        free = [i for i in range(x.ndim) if i not in batch and i not in contracted]
        order = [*batch, *free, *contracted] if contracted_last else [*batch, *contracted, *free]
        size = lambda axes: int(np.prod([x.shape[i] for i in axes], dtype=np.int64))
        dims = [size(batch), size(free), size(contracted)] if contracted_last else \
            [size(batch), size(contracted), size(free)]
        return x.transpose(order).reshape(dims), [x.shape[i] for i in free]

    left, left_free = sorted_axes(a, a_batch, a_contracted, True)
    right, right_free = sorted_axes(b, b_batch, b_contracted, False)
    shape = [a.shape[i] for i in a_batch] + left_free + right_free
    if not is_float(dtype):
        return np.matmul(left.astype(dtype), right.astype(dtype)).reshape(shape)
    left, right = left.astype(np.float64), right.astype(np.float64)
    return rounding(np.matmul(left, right).reshape(shape), dtype,
                    _added_up(np.matmul(np.abs(left), np.abs(right)).reshape(shape), dtype))


def _added_up(magnitude, dtype):
    """What the roundings of a sum may come to: XLA adds up narrow types in f32."""
    return 0.5 * min(UNIT[np.dtype(np.float32)], UNIT.get(np.dtype(dtype), 1.0)) * magnitude


@rule("reduce_sum")
def _(eqn, rounding, x):
    axes, dtype = eqn.params["axes"], _type(eqn)
    if not is_float(dtype):
        return np.sum(x, axis=axes, dtype=dtype)
    return rounding(np.sum(x, axis=axes), dtype, _added_up(np.sum(np.abs(x), axis=axes), dtype))


def _limit(dtype, largest):
    if dtype.kind == "f":
        return -np.inf if largest else np.inf
    if dtype.kind == "b":
        return not largest
    return np.iinfo(dtype).min if largest else np.iinfo(dtype).max


RULES["reduce_max"] = lambda eqn, rounding, x: np.max(x, axis=eqn.params["axes"], initial=_limit(x.dtype, True))
RULES["reduce_min"] = lambda eqn, rounding, x: np.min(x, axis=eqn.params["axes"], initial=_limit(x.dtype, False))
RULES["reduce_and"] = lambda eqn, rounding, x: np.all(x, axis=eqn.params["axes"])
RULES["reduce_or"] = lambda eqn, rounding, x: np.any(x, axis=eqn.params["axes"])
RULES["reduce_prod"] = lambda eqn, rounding, x: _settled(eqn, rounding, np.prod(x, axis=eqn.params["axes"]))
RULES["argmax"] = lambda eqn, rounding, x: np.argmax(x, axis=eqn.params["axes"][0]).astype(_type(eqn))
RULES["argmin"] = lambda eqn, rounding, x: np.argmin(x, axis=eqn.params["axes"][0]).astype(_type(eqn))


def _cumulative(function):
    def run(eqn, rounding, x):
        axis, reverse = eqn.params["axis"], eqn.params["reverse"]
        x = np.flip(x, axis) if reverse else x
        x = function(x, axis=axis)
        x = np.flip(x, axis) if reverse else x
        return _settled(eqn, rounding, x)

    return run


RULES["cumsum"] = _cumulative(np.cumsum)
RULES["cumprod"] = _cumulative(np.cumprod)
RULES["cummax"] = _cumulative(np.maximum.accumulate)
RULES["cummin"] = _cumulative(np.minimum.accumulate)


@rule("broadcast_in_dim")
def _(eqn, rounding, x, *_):
    shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    tail = x.shape[len(dims):]  # of keys, their words
    expanded = [1] * len(shape)
    for at, dim in enumerate(dims):
        expanded[dim] = x.shape[at]
    return np.broadcast_to(x.reshape((*expanded, *tail)), (*shape, *tail))


@rule("reshape")
def _(eqn, rounding, x, *_):
    assert eqn.params["dimensions"] is None
    old, new = eqn.invars[0].aval.shape, eqn.params["new_sizes"]
    return x.reshape((*new, *x.shape[len(old):]))


@rule("transpose")
def _(eqn, rounding, x):
    permutation = eqn.params["permutation"]
    return x.transpose((*permutation, *range(len(permutation), x.ndim)))


@rule("squeeze")
def _(eqn, rounding, x):
    return x.reshape((*eqn.outvars[0].aval.shape, *x.shape[len(eqn.invars[0].aval.shape):]))


RULES["expand_dims"] = RULES["squeeze"]
RULES["stack"] = lambda eqn, rounding, *x: np.stack(x, eqn.params.get("axis", eqn.params.get("dimension")))
RULES["unstack"] = lambda eqn, rounding, x: list(np.moveaxis(x, eqn.params["axis"], 0))
RULES["reshard"] = lambda eqn, rounding, x: x
RULES["empty2"] = lambda eqn, rounding: np.zeros(eqn.outvars[0].aval.shape, np.float64 if is_float(_type(eqn)) else _type(eqn))
RULES["empty"] = RULES["empty2"]
RULES["tile"] = lambda eqn, rounding, x: np.tile(x, eqn.params["reps"])
RULES["concatenate"] = lambda eqn, rounding, *x: np.concatenate(x, eqn.params["dimension"])
RULES["rev"] = lambda eqn, rounding, x: np.flip(x, eqn.params["dimensions"])
RULES["split"] = lambda eqn, rounding, x: np.split(x, np.cumsum(eqn.params["sizes"])[:-1], eqn.params["axis"])


@rule("iota")
def _(eqn, rounding, *_):
    shape, dimension, dtype = eqn.params["shape"], eqn.params["dimension"], np.dtype(eqn.params["dtype"])
    index = np.arange(shape[dimension]).reshape([-1 if i == dimension else 1 for i in range(len(shape))])
    index = rounding.converted(index.astype(np.float64), dtype) if is_float(dtype) else index.astype(dtype)
    return np.broadcast_to(index, shape)


@rule("pad")
def _(eqn, rounding, x, value):
    for axis, (low, high, interior) in enumerate(eqn.params["padding_config"]):
        if interior and x.shape[axis] > 1:
            shape = list(x.shape)
            shape[axis] = (x.shape[axis] - 1) * (interior + 1) + 1
            spread = np.full(shape, value, x.dtype)
            spread[(slice(None),) * axis + (slice(None, None, interior + 1),)] = x
            x = spread
        x = x[(slice(None),) * axis + (slice(max(0, -low), x.shape[axis] - max(0, -high)),)]
        width = [(0, 0)] * x.ndim
        width[axis] = max(0, low), max(0, high)
        x = np.pad(x, width, constant_values=value)
    return x


@rule("slice")
def _(eqn, rounding, x):
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    return x[tuple(slice(*of) for of in zip(starts, limits, strides))]


def _starts(x, sizes, starts):
    return tuple(slice(at, at + size) for at, size in
                 zip((min(max(int(s), 0), dim - size) for s, dim, size in zip(starts, x.shape, sizes)), sizes))


@rule("dynamic_slice")
def _(eqn, rounding, x, *starts):
    sizes = eqn.params["slice_sizes"]
    return x[_starts(x, sizes, starts[:len(sizes)])]


@rule("dynamic_update_slice")
def _(eqn, rounding, x, update, *starts):
    dims = len(eqn.invars[0].aval.shape)
    x = x.copy()
    x[_starts(x, update.shape[:dims], starts)] = update
    return x


def _threefry(key, high, low):
    """The two words of threefry 2x32 with 20 rounds for each count."""
    key = [np.uint32(key[0]), np.uint32(key[1]), np.uint32(key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))]
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    x, y = high + key[0], low + key[1]
    for group in range(5):
        for by in rotations[group % 2]:
            x = x + y
            y = (y << np.uint32(by)) | (y >> np.uint32(32 - by))
            y = y ^ x
        x = x + key[(group + 1) % 3]
        y = y + key[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _counts(shape):
    count = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64).reshape(shape)
    return (count >> np.uint64(32)).astype(np.uint32), count.astype(np.uint32)


def _of_threefry(eqn):
    return "fry" in str(eqn.invars[0].aval.dtype)


def _for_each_key(keys, function):
    words = [function(key) for key in keys.reshape(-1, keys.shape[-1])]
    return np.stack(words).reshape((*keys.shape[:-1], *words[0].shape))


@rule("random_bits")
def _(eqn, rounding, keys):
    if not _of_threefry(eqn) or eqn.params["bit_width"] not in (8, 16, 32):
        return _by_jax(eqn, rounding, keys)

    def bits(key):
        x, y = _threefry(key, *_counts(eqn.params["shape"]))
        return (x ^ y).astype(_type(eqn))

    return _for_each_key(keys, bits)


@rule("random_split")
def _(eqn, rounding, keys):
    if not _of_threefry(eqn):
        return _by_jax(eqn, rounding, keys)
    return _for_each_key(keys, lambda key: np.stack(_threefry(key, *_counts(eqn.params["shape"])), -1))


@rule("random_fold_in")
def _(eqn, rounding, keys, data):
    if not _of_threefry(eqn) or keys.ndim > 1 or data.ndim:
        return _by_jax(eqn, rounding, keys, data)
    return np.stack(_threefry(keys, np.zeros((), np.uint32), data.astype(np.uint32)), -1)


@rule("threefry2x32")
def _(eqn, rounding, key0, key1, high, low):
    key0, key1, high, low = np.broadcast_arrays(key0, key1, high, low)
    return _threefry((key0, key1), high, low)


@rule("jit", "pjit", "closed_call", "core_call", "remat2", "remat", "checkpoint", "custom_jvp_call", "custom_vjp_call",
      "custom_vjp_call_jaxpr", "shard_map", "custom_lin")
def _(eqn, rounding, *operands):
    jaxpr = next(eqn.params[name] for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in eqn.params)
    constants = [in_f64(c) for c in getattr(jaxpr, "consts", ())]
    return _run(getattr(jaxpr, "jaxpr", jaxpr), constants, operands, rounding)


@rule("reduce")
def _(eqn, rounding, *operands):
    """One value after the other, for all results at once."""
    jaxpr, dims = eqn.params["jaxpr"], eqn.params["dimensions"]
    arrays, state = operands[:len(operands) // 2], list(operands[len(operands) // 2:])
    shape = eqn.outvars[0].aval.shape
    rows = [np.moveaxis(x, dims, range(len(dims))).reshape(-1, *shape) for x in arrays]
    state = [np.broadcast_to(x, shape) for x in state]
    for values in zip(*rows):
        state = _body(jaxpr, rounding)(*state, *values) if hasattr(jaxpr, "consts") else \
            _run(jaxpr, list(eqn.params.get("consts", ())), [*state, *values], rounding)
    return state


def _body(closed, rounding):
    constants = [in_f64(c) for c in closed.consts]
    return lambda *x: _run(closed.jaxpr, constants, x, rounding)


@rule("while")
def _(eqn, rounding, *operands):
    params = eqn.params
    for_test, rest = operands[:params["cond_nconsts"]], operands[params["cond_nconsts"]:]
    for_body, state = rest[:params["body_nconsts"]], rest[params["body_nconsts"]:]
    test, body = _body(params["cond_jaxpr"], rounding), _body(params["body_jaxpr"], rounding)
    while test(*for_test, *state)[0]:
        state = body(*for_body, *state)
    return list(state)


@rule("scan")
def _(eqn, rounding, *operands):
    params = eqn.params
    n_constants, n_carry = map(len, params["ft_in"].unpack()[:2]) if "ft_in" in params else \
        (params["num_consts"], params["num_carry"])  # before JAX 0.11
    length = params["length"]
    constants, carry = operands[:n_constants], operands[n_constants:n_constants + n_carry]
    stacked = operands[n_constants + n_carry:]
    body = _body(params["jaxpr"], rounding)
    kept = [None] * length
    for i in (reversed(range(length)) if params["reverse"] else range(length)):
        results = body(*constants, *carry, *(x[i] for x in stacked))
        carry, kept[i] = results[:n_carry], results[n_carry:]
    return [*carry, *(np.stack(x) for x in zip(*kept, strict=True))]


@rule("cond")
def _(eqn, rounding, index, *operands):
    branches = eqn.params["branches"]
    return _body(branches[min(max(int(index), 0), len(branches) - 1)], rounding)(*operands)


def _x64():
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # before JAX 0.8

    return enable_x64(True)


def _by_jax(eqn, rounding, *operands):
    """One operation by JAX itself, floats in f64."""
    def given(atom, x):
        if is_key(atom.aval.dtype):
            return jax.random.wrap_key_data(jnp.asarray(x), impl=atom.aval.dtype._impl.name)
        return jnp.asarray(x)

    params = dict(eqn.params)
    run = eqn.primitive.bind
    if eqn.primitive.name == "scatter-add":  # its parameters hold an addition of the program's own types
        run = jax.lax.scatter_add
        params = {name: params[name] for name in ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")}
    with _x64():
        results = run(*(given(atom, x) for atom, x in zip(eqn.invars, operands)), **params)
        results = list(results) if eqn.primitive.multiple_results else [results]
        results = [in_f64(x) for x in results]
    return [rounding.converted(x, v.aval.dtype) if is_float(v.aval.dtype) else x
            for v, x in zip(eqn.outvars, results)]
