"""The Elixir package's attention, RoPE, norms and training step, held against JAX's own arithmetic and derivatives.

Each function is spelled out here in jax.numpy and run in f64, which is the truth, and in the type of the call, whose
distance from the truth is the measure: Heddle's may be twice that, and a few roundings of what is of size 1.
"""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from calls import Atom, Calls

jax.config.update("jax_enable_x64", True)

B, T, S, N, K, H, D = 2, 13, 21, 6, 2, 16, 24
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def numbers(seed, *shape, dtype=np.float32, spread=1.0):
    """Unlike along every axis: noise about an offset of each index of each axis."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    for axis, size in enumerate(shape):
        x = x + 0.3 * rng.standard_normal(size).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return (spread * x).astype(dtype)


# ---- Attention as JAX computes it.


def turned(x, cosines, sines, pairing, leading=False):
    """Pairs of the last columns, or of the first, rotated by row."""
    half = cosines.shape[1]
    if leading:
        return jnp.concatenate([turned(x[..., : 2 * half], cosines, sines, pairing), x[..., 2 * half:]], -1)
    still, last = x[..., : x.shape[-1] - 2 * half], x[..., x.shape[-1] - 2 * half:]
    a, b = (last[..., :half], last[..., half:]) if pairing == "halves" else (last[..., ::2], last[..., 1::2])
    c, s = (table[: x.shape[1], None].astype(x.dtype) for table in (cosines, sines))
    a, b = a * c - b * s, a * s + b * c
    last = jnp.concatenate([a, b], -1) if pairing == "halves" else jnp.stack([a, b], -1).reshape(last.shape)
    return jnp.concatenate([still, last], -1)


def slopes(heads):
    """Press et al., 2022, for a power of two and for what is between two of them."""
    def of_power(n):
        return [2.0 ** (-8 * (i + 1) / n) for i in range(n)]
    n = 2 ** int(np.log2(heads))
    return np.array(of_power(n) + of_power(2 * n)[::2][: heads - n])


def attention(operands, o):
    """(output, log-sum-exp) of a dict of arrays, by the options `o`, in the arrays' type."""
    q, k, v = operands["q"], operands["k"], operands["v"]
    if "rope" in o:
        q, k = (turned(x, *o["rope"]) for x in (q, k))
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("btnh,bsnh->bnts", q, k, precision="highest")
    scores = scores * jnp.asarray(o.get("scale", q.shape[-1] ** -0.5), q.dtype)
    if "soft_cap" in o:
        scores = o["soft_cap"] * jnp.tanh(scores / o["soft_cap"])
    if "bias" in operands:
        scores = scores + operands["bias"].astype(scores.dtype)
    t, s = q.shape[1], k.shape[1]
    row, column = jnp.arange(t)[:, None], jnp.arange(s)
    if o.get("alibi"):
        scores = scores + (slopes(q.shape[2])[:, None, None] * (column - row)).astype(scores.dtype)
    q_lengths = jnp.asarray(o.get("q_lengths", [t] * q.shape[0]))[:, None, None, None]
    kv_lengths = jnp.asarray(o.get("kv_lengths", [s] * q.shape[0]))[:, None, None, None]
    keep = (row < q_lengths) & (column < kv_lengths)
    causal = o.get("causal", True)
    at = row + (kv_lengths - q_lengths if causal == "bottom_right" else 0)
    left, right = o.get("window", (None, None))
    if causal:
        keep = keep & (column <= at)
    if left is not None:
        keep = keep & (column >= at - left)
    if right is not None:
        keep = keep & (column <= at + right)
    if "mask" in o:
        keep = keep & (o["mask"] != 0)
    seen = keep.any(-1, keepdims=True)
    scores = jnp.where(keep, scores, -jnp.inf)
    logits = scores
    if "sinks" in operands:
        sinks = operands["sinks"].astype(scores.dtype)[None, :, None, None]
        logits = jnp.concatenate([scores, jnp.broadcast_to(sinks, (*scores.shape[:3], 1))], -1)
    # Rows without a key would have NaN in their derivatives.
    safe = jnp.where(seen, logits, 0)
    lse = jnp.where(seen[..., 0], jax.scipy.special.logsumexp(safe, -1), -jnp.inf)
    weights = jnp.where(seen, jnp.exp(safe - jax.lax.stop_gradient(safe.max(-1, keepdims=True))), 0)
    weights = weights / jnp.where(seen, weights.sum(-1, keepdims=True), 1)
    weights = jnp.where(keep, weights[..., :s], 0)
    if "kept" in o:
        weights = jnp.where(o["kept"], weights / (1 - o["dropout"]), 0).astype(weights.dtype)
    return jnp.einsum("bnts,bsnd->btnd", weights, v, precision="highest"), lse


def derivatives(operands, options, d_out, dtype):
    """(output, lse, gradients by name) in a type."""

    @jax.jit
    def run(named, d_out):
        (output, lse), back = jax.vjp(lambda named: attention(named, options), named)
        return output, lse, back((d_out, jnp.zeros_like(lse)))[0]

    return run({name: jnp.asarray(x, dtype) for name, x in operands.items()}, jnp.asarray(d_out, dtype))


def hold(found, truth, plain, rounding, what):
    """`found` is at most twice as far from the truth as plain arithmetic of its type, or a few roundings."""
    found, truth, plain = (np.asarray(x, np.float64) for x in (found, truth, plain))
    assert found.shape == truth.shape, what
    finite = np.isfinite(truth)
    assert np.array_equal(found[~finite], truth[~finite]), what
    found, truth, plain = found[finite], truth[finite], plain[finite]
    allowed = 2 * np.abs(plain - truth).max(initial=0) + 8 * rounding * max(1, np.abs(truth).max(initial=0))
    error = np.abs(found - truth).max(initial=0)
    assert error <= allowed, f"{what}: {error:.3g} from the truth, {allowed:.3g} allowed"


CASES = {
    "plain": {},
    "whole": {"causal": False},
    "bottom_right": {"causal": "bottom_right"},
    "window": {"causal": False, "window": (3, 5)},
    "left": {"causal": "bottom_right", "window": (4, None)},
    "scale": {"scale": 0.7, "kv_heads": K},
    "steep": {"scale": 6.0},
    "bias": {"bias": (B, N, T, S), "causal": False},
    "bias_shared": {"bias": (1, N, 1, S)},
    "mask": {"mask": (B, 1, T, S), "causal": False},
    "mask_of_heads": {"mask": (1, N, T, S)},
    "lengths": {"q_lengths": [9, T], "kv_lengths": [S, 4], "causal": False},
    "lengths_bottom_right": {"q_lengths": [9, 3], "kv_lengths": [15, 2], "causal": "bottom_right"},
    "no_keys": {"kv_lengths": [0, 7]},
    "soft_cap": {"soft_cap": 2.5, "scale": 1.0},
    "sinks": {"sinks": True},
    "alibi": {"alibi": True},
    "dropout": {"dropout": 0.25, "seed": 77, "offset": 5, "causal": False},
    "rope": {"rope": "halves"},
    "rope_interleaved": {"rope": "interleaved", "causal": False},
    "rope_of_first_halves": {"rope": "halves of the first"},
    "rope_of_first_neighbours": {"rope": "interleaved of the first", "causal": False},
    "all": {"causal": "bottom_right", "window": (9, None), "soft_cap": 5.0, "bias": (B, 1, T, S), "mask": (B, 1, 1, S),
            "sinks": True, "rope": "halves", "kv_lengths": [S, 17], "q_lengths": [T, 8]},
}


def types(name):
    """f32 and one of 16 bits, in turn; all three of the case without options and of that with all."""
    of_16_bits = ["f16", "bf16"][list(CASES).index(name) % 2]
    return list(TYPES) if name in ("plain", "all") else ["f32", of_16_bits]


class Case:
    """A call's tensors, its options as Elixir has them, and as `attention` above does."""

    def __init__(self, number, given, dtype):
        self.dtype = np.dtype(dtype)
        shapes = {"q": (B, T, N, H), "k": (B, S, K, H), "v": (B, S, K, D)}
        self.operands = {name: numbers(31 * number + i, *shape, dtype=dtype)
                         for i, (name, shape) in enumerate(shapes.items())}
        self.d_out = numbers(31 * number + 3, B, T, N, D, dtype=dtype)
        self.elixir, self.options = {}, {}
        for name, value in given.items():
            written = value
            if name == "bias":
                written = value = self.operands["bias"] = numbers(31 * number + 4, *value)
            elif name == "sinks":
                written = value = self.operands["sinks"] = numbers(31 * number + 5, N)
            elif name == "mask":
                written = value = np.random.default_rng(number).choice(np.array([0, 1, 255], np.uint8), value)
            elif name == "causal" and isinstance(value, str):
                written = Atom(":" + value)
            elif name == "rope":
                # Twelve of the sixteen columns.
                angles = np.arange(S)[:, None] * 100.0 ** (-2 * np.arange(6) / 12)
                pairing, leading = value.split()[0], "first" in value
                written = Atom(f"Heddle.Rope.table!({S}, 12, base: 100.0, pairing: :{pairing}, leading: {str(leading).lower()})")
                value = (np.cos(angles), np.sin(angles), pairing, leading)
            self.elixir[name], self.options[name] = written, value

    @property
    def gradients(self):
        return [Atom(f":{name}") for name in ("bias", "sinks") if name in self.operands]

    def add(self, calls, name):
        rows = [self.operands[x] for x in "qkv"]
        calls.add(f"{name}.forward", "Heddle.FlashAttention.forward_with_states", *rows, self.elixir)
        if "dropout" in self.options:
            # Values that are the unit matrix show the weights, and so which are kept.
            unit = np.broadcast_to(np.eye(S, dtype=self.dtype)[None, :, None], (B, S, rows[1].shape[2], S))
            calls.add(f"{name}.kept", "Heddle.FlashAttention.forward", *rows[:2], unit, self.elixir)

    def add_backward(self, calls, name, output, lse):
        rows = [self.operands[x] for x in "qkv"]
        calls.add(f"{name}.backward", "Heddle.FlashAttention.backward", self.d_out, *rows, output, lse,
                  self.elixir | {"gradients": self.gradients})

    def expected(self, dtype):
        return derivatives(self.operands, self.options, self.d_out, dtype)


@pytest.fixture(scope="module")
def cases():
    return {(name, dtype): Case(i, given, TYPES[dtype])
            for i, (name, given) in enumerate(CASES.items()) for dtype in types(name)}


@pytest.fixture(scope="module")
def forward(cases, tmp_path_factory):
    calls = Calls(tmp_path_factory.mktemp("forward"))
    for (name, dtype), case in cases.items():
        case.add(calls, f"{name}_{dtype}")
    found = calls.run()
    for (name, dtype), case in cases.items():
        if "dropout" in case.options:
            case.options["kept"] = np.moveaxis(np.asarray(found[f"{name}_{dtype}.kept"][0], np.float32) != 0, 1, 2)
    return found


@pytest.fixture(scope="module")
def backward(cases, forward, tmp_path_factory):
    calls = Calls(tmp_path_factory.mktemp("backward"))
    for (name, dtype), case in cases.items():
        case.add_backward(calls, f"{name}_{dtype}", *forward[f"{name}_{dtype}.forward"])
    return calls.run()


@pytest.mark.parametrize("name, dtype", [(name, dtype) for name in CASES for dtype in types(name)])
def test_attention_and_its_gradients(name, dtype, cases, forward, backward):
    case = cases[name, dtype]
    output, lse = forward[f"{name}_{dtype}.forward"]
    gradients = backward[f"{name}_{dtype}.backward"]
    true_o, true_lse, true_gradients = case.expected(np.float64)
    plain_o, plain_lse, plain_gradients = case.expected(case.dtype)
    rounding = ROUNDING[case.dtype.name]
    assert output.dtype == case.dtype and lse.dtype == np.float32
    hold(output, true_o, plain_o, rounding, "output")
    hold(lse, true_lse, plain_lse, rounding, "log-sum-exp")
    names = ["q", "k", "v", *(x for x in ("bias", "sinks") if x in case.operands)]
    assert len(gradients) == len(names)
    for which, gradient in zip(names, gradients):
        assert gradient.dtype == (case.dtype if which in "qkv" else np.float32)
        hold(gradient, true_gradients[which], plain_gradients[which], rounding, f"gradient of {which}")


def test_packed_and_resident_sequences(tmp_path):
    """Sequences of many lengths, one behind the other in memory of a device: each is as by itself."""
    q_lengths, kv_lengths = [5, 0, 9], [8, 3, 12]
    q_offsets, kv_offsets = (np.cumsum([0, *lengths]).tolist() for lengths in (q_lengths, kv_lengths))
    options = {"causal": "bottom_right", "soft_cap": 4.0}
    shapes = {"q": (q_offsets[-1], N, H), "k": (kv_offsets[-1], K, H), "v": (kv_offsets[-1], K, D)}
    rows = {name: numbers(900 + i, *shape) for i, (name, shape) in enumerate(shapes.items())}
    d_out = numbers(903, q_offsets[-1], N, D)
    elixir = {"causal": Atom(":bottom_right"), "soft_cap": 4.0, "offsets": (q_offsets, kv_offsets)}

    def call(folder, function, *tensors):
        folder.mkdir()
        calls = Calls(folder)
        resident = [Atom(f"Heddle.Tensor.upload!({calls.term(x)}, :cpu)") for x in tensors]
        calls.add("call", f"Heddle.FlashAttention.{function}", *resident, elixir)
        return calls.run()["call"]

    output, lse = call(tmp_path / "forward", "forward_with_states", *rows.values())
    gradients = call(tmp_path / "backward", "backward", d_out, *rows.values(), output, lse)
    assert lse.shape == (q_offsets[-1], N)

    def expected(dtype):
        made = []
        for i in range(len(q_lengths)):
            q, kv = slice(*q_offsets[i:i + 2]), slice(*kv_offsets[i:i + 2])
            if q_lengths[i] == 0:
                made.append([np.zeros_like(x) for x in (d_out[q], lse[q], rows["q"][q], rows["k"][kv], rows["v"][kv])])
                continue
            entry = {"q": rows["q"][None, q], "k": rows["k"][None, kv], "v": rows["v"][None, kv]}
            o, l, d = derivatives(entry, options, d_out[None, q], dtype)
            made.append([o[0], np.moveaxis(np.asarray(l[0]), 0, 1), *(d[name][0] for name in "qkv")])
        return [np.concatenate([np.asarray(x, np.float64) for x in parts]) for parts in zip(*made)]

    names = ["output", "log-sum-exp", "gradient of q", "gradient of k", "gradient of v"]
    for what, *three in zip(names, [output, lse, *gradients], expected(np.float64), expected(np.float32)):
        hold(*three, ROUNDING["float32"], what)


def test_dropout_drops_its_share(cases, forward):
    kept = cases["dropout", "f32"].options["kept"]
    assert abs(kept.mean() - 0.75) < 4 * np.sqrt(0.25 * 0.75 / kept.size)
    assert not np.array_equal(kept[0], kept[1]) and not np.array_equal(kept[:, 0], kept[:, 1])


def test_functions_of_fixed_arguments(tmp_path):
    """forward_with_logsumexp_nif/8 and backward_f32_nif/11, through tensors that carry their binaries."""
    q, k, v, d_out = (numbers(i, B, T, N, H) for i in range(4))
    for causal in (True, False):
        folder = tmp_path / str(causal)
        folder.mkdir()
        calls = Calls(folder)
        sizes = f"{B}, {T}, {N}, {H}, {str(causal).lower()}"
        f32 = f"&Heddle.Tensor.new!(&1, {{{B}, {T}, {N}, {H}}}, :f32)"
        statistics = f"&Heddle.Tensor.new!(&1, {{{B}, {N}, {T}}}, :f32)"
        given = {name: f"{calls.tensor(x)}.data" for name, x in (("q", q), ("k", k), ("v", v), ("d_out", d_out))}
        rows = ", ".join(given[name] for name in "qkv")
        calls.written.append(
            '{"call", fn -> '
            f"{{:ok, o, lse}} = Heddle.Native.forward_with_logsumexp_nif({rows}, {sizes}); "
            f"{{:ok, dq, dk, dv}} = Heddle.Native.backward_f32_nif({given['d_out']}, {rows}, o, lse, {sizes}); "
            f"List.to_tuple([:ok, ({statistics}).(lse) | Enum.map([o, dq, dk, dv], {f32})]) end, []}}")
        lse, output, *gradients = calls.run()["call"]
        operands = {"q": q, "k": k, "v": v}
        truth, plain = (derivatives(operands, {"causal": causal}, d_out, dtype) for dtype in (np.float64, np.float32))
        hold(output, truth[0], plain[0], ROUNDING["float32"], "output")
        hold(lse, truth[1], plain[1], ROUNDING["float32"], "log-sum-exp")
        for name, gradient in zip("qkv", gradients):
            hold(gradient, truth[2][name], plain[2][name], ROUNDING["float32"], f"gradient of {name}")


def test_rope_and_rms_norm(tmp_path):
    calls = Calls(tmp_path)
    x, dy = numbers(1, B, T, N, H), numbers(2, B, T, N, H)
    weight, bias = numbers(3, H), numbers(4, H)
    positions = np.array([[3 * t + b for t in range(T)] for b in range(B)], np.int32)
    angles = np.arange(60)[:, None] * 50.0 ** (-2 * np.arange(H // 2) / H)
    table = Atom(f"Heddle.Rope.table!(60, {H}, base: 50.0)")
    calls.add("rotate", "Heddle.Rope.rotate", x, table, {"positions": positions, "output_scale": 1.5})
    calls.add("rotate_back", "Heddle.Rope.rotate_back", dy, table, {"positions": positions, "output_scale": 1.5})
    first = Atom("Heddle.Rope.table!(60, 6, base: 50.0, pairing: :interleaved, leading: true)")
    calls.add("rotate_first", "Heddle.Rope.rotate", x, first, {"positions": positions})
    calls.add("rotate_first_back", "Heddle.Rope.rotate_back", dy, first, {"positions": positions})
    calls.add("norm", "Heddle.RmsNorm.forward_with_states", x, weight, {"bias": bias, "epsilon": 0.01})

    def rope(x):
        tables = ((np.cos(angles)[of_entry], np.sin(angles)[of_entry]) for of_entry in positions)
        return jnp.concatenate([1.5 * turned(x[b:b + 1], *table, "halves") for b, table in enumerate(tables)])

    def rope_of_first(x):
        of_six = np.arange(60)[:, None] * 50.0 ** (-2 * np.arange(3) / 6)
        tables = ((np.cos(of_six)[of_entry], np.sin(of_six)[of_entry]) for of_entry in positions)
        return jnp.concatenate([turned(x[b:b + 1], *table, "interleaved", leading=True) for b, table in enumerate(tables)])

    def norm(x, weight, bias):
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 0.01) * weight + bias

    found = calls.run()
    wide = [jnp.asarray(a, jnp.float64) for a in (x, weight, bias, dy)]
    turned_x, back = jax.vjp(rope, wide[0])
    np.testing.assert_allclose(found["rotate"][0], turned_x, atol=4e-6)
    np.testing.assert_allclose(found["rotate_back"][0], back(wide[3])[0], atol=4e-6)
    turned_x, back = jax.vjp(rope_of_first, wide[0])
    np.testing.assert_allclose(found["rotate_first"][0], turned_x, atol=4e-6)
    np.testing.assert_allclose(found["rotate_first_back"][0], back(wide[3])[0], atol=4e-6)
    y, back = jax.vjp(norm, *wide[:3])
    np.testing.assert_allclose(found["norm"][0], y, atol=4e-6)
    again = Calls(tmp_path / "back")
    again.folder.mkdir()
    again.add("back", "Heddle.RmsNorm.backward", dy, x, weight, found["norm"][1], {"bias": True})
    for gradient, expected in zip(again.run()["back"], back(wide[3]), strict=True):
        np.testing.assert_allclose(gradient, expected, atol=2e-5)


def test_layer_norm(tmp_path):
    """Of rows around 20, whose mean is many times their spread."""
    calls = Calls(tmp_path)
    x, dy = numbers(1, B, T, N, H) + np.float32(20), numbers(2, B, T, N, H)
    weight, bias = numbers(3, H), numbers(4, H)
    calls.add("norm", "Heddle.LayerNorm.forward_with_states", x, weight, {"bias": bias, "epsilon": 0.01})

    def norm(x, weight, bias):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 0.01) * weight + bias

    y, mean, inverse = calls.run()["norm"]
    wide = [jnp.asarray(a, jnp.float64) for a in (x, weight, bias, dy)]
    expected, back = jax.vjp(norm, *wide[:3])
    np.testing.assert_allclose(y, expected, atol=8e-6)
    np.testing.assert_allclose(mean, wide[0].mean(-1, keepdims=True), rtol=1e-6)
    again = Calls(tmp_path / "back")
    again.folder.mkdir()
    again.add("back", "Heddle.LayerNorm.backward", dy, x, weight, mean, inverse, {"bias": True})
    for gradient, expected in zip(again.run()["back"], back(wide[3]), strict=True):
        np.testing.assert_allclose(gradient, expected, atol=4e-5)


# ---- The training step.

FEATURES, WIDTH, HEADS, KV_HEADS, DIM, ACTIONS = 5, 12, 4, 2, 8, 3


def policy_loss(p, states, actions, attention_options):
    e = jnp.tanh(states @ p["embedding"] + p["embedding_bias"])
    q, k, v = ((e @ p[name]).reshape(*e.shape[:2], -1, DIM) for name in ("query", "key", "value"))
    output, _ = attention({"q": q, "k": k, "v": v}, attention_options)
    logits = output.reshape(*e.shape[:2], -1) @ p["head"] + p["head_bias"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], -1)
    return -chosen.mean()


def sgd(p, g, state):
    return {n: p[n] - 0.3 * g[n] for n in p}, state


def adam(p, g, state):
    step, first, second = state
    step += 1
    first = {n: 0.8 * first[n] + 0.2 * g[n] for n in p}
    second = {n: 0.95 * second[n] + 0.05 * g[n] ** 2 for n in p}
    move = {n: first[n] / (1 - 0.8**step) / (jnp.sqrt(second[n] / (1 - 0.95**step)) + 1e-6) for n in p}
    return {n: p[n] - 0.02 * move[n] for n in p}, (step, first, second)


OPTIMIZERS = {"sgd": (sgd, "{:sgd, learning_rate: 0.3}"),
              "adam": (adam, "{:adam, learning_rate: 0.02, beta1: 0.8, beta2: 0.95, epsilon: 1.0e-6}")}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_steps(optimizer, tmp_path):
    """Five steps on batches of their own: every loss and every parameter after the last."""
    shapes = {"embedding": (FEATURES, WIDTH), "embedding_bias": (WIDTH,), "query": (WIDTH, HEADS * DIM),
              "key": (WIDTH, KV_HEADS * DIM), "value": (WIDTH, KV_HEADS * DIM), "head": (HEADS * DIM, ACTIONS),
              "head_bias": (ACTIONS,)}
    p = {name: numbers(i, *shape, dtype=np.float64, spread=0.5) for i, (name, shape) in enumerate(shapes.items())}
    rng = np.random.default_rng(5)
    batches = [(numbers(40 + i, B, T, FEATURES, dtype=np.float64), rng.integers(0, ACTIONS, (B, T), np.int32))
               for i in range(5)]
    calls = Calls(tmp_path)
    update, written = OPTIMIZERS[optimizer]
    parameters = "%{" + ", ".join(f"{name}: {calls.tensor(x)}" for name, x in p.items()) + "}"
    given = ", ".join(f"%{{states: {calls.tensor(states)}, actions: {calls.tensor(actions)}}}"
                      for states, actions in batches)
    calls.written.append(
        '{"steps", fn -> '
        f"{{:ok, training}} = Heddle.Training.new({parameters}, heads: {HEADS}, optimizer: {written}, "
        "attention: [window: {6, nil}]); "
        f"{{training, losses}} = Enum.reduce([{given}], {{training, []}}, fn batch, {{training, losses}} -> "
        "{:ok, training, loss} = Heddle.Training.train_step(training, batch); {training, losses ++ [loss]} end); "
        "{:ok, losses, training.parameters} end, []}")
    found = calls.run()["steps"]
    losses, after = [x.item() for x in found[:5]], dict(zip(sorted(shapes), found[5:], strict=True))

    zeros = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    p, state = {name: jnp.asarray(x) for name, x in p.items()}, (0, zeros, zeros)
    for loss, (states, actions) in zip(losses, batches):
        expected, g = jax.value_and_grad(policy_loss)(p, states, jnp.asarray(actions), {"window": (6, None)})
        assert loss == pytest.approx(float(expected), rel=2e-6)
        p, state = update(p, g, state)
    for name, x in p.items():
        np.testing.assert_allclose(after[name], x, rtol=0, atol=2e-5, err_msg=name)
