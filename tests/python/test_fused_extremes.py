"""Fused programs beside the originals in XLA, on inputs that tell right from nearly right: fills as low as a mask's
given as data, rows and entries hidden whole, sinks of -inf, logits of 1000, positions of each batch entry, narrow operands
of programs that compute in f32."""

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

B, H, Q, D = 2, 3, 11, 8
LOWEST = float(jnp.finfo(jnp.float32).min)
CAUSAL = np.tril(np.ones((Q, Q), bool))


def random(*shape, seed=0, scale=1.0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape) * scale, jnp.float32)


def attend(q, k, v, of_scores=lambda s: s, of_weights=lambda p: p):
    s = of_scores(jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5)
    return jnp.einsum("bhqk,bkhd->bqhd", of_weights(jax.nn.softmax(s, axis=-1)), v)


def padding(fill, hidden=(Q, 3)):
    """Added to scores: how many first keys of each entry are hidden, all those of one."""
    bias = np.zeros((B, 1, 1, Q), np.float32)
    for entry, keys in enumerate(hidden):
        bias[entry, ..., :keys] = fill
    return jnp.asarray(bias)


KEYS = jnp.asarray(np.random.default_rng(3).random((B, 1, 1, Q)) < 0.6).at[0].set(False)
SINKS = jnp.asarray([-jnp.inf, 0.5, -2.0], jnp.float32)

PROGRAMS = {
    "padding added": (lambda q, k, v, b: attend(q, k, v, lambda s: s + b), (padding(-1e9),)),
    "padding of the lowest added": (lambda q, k, v, b: attend(q, k, v, lambda s: s + b), (padding(LOWEST),)),
    "padding of rows added": (lambda q, k, v, b: attend(q, k, v, lambda s: s + b),
                              (padding(LOWEST).swapaxes(2, 3),)),
    "lifted": (lambda q, k, v, b: attend(q, k, v, lambda s: s + b), (padding(4e9),)),
    "mask of floats": (lambda q, k, v, m: attend(q, k, v, lambda s: s + (1.0 - m) * -1e9),
                       (KEYS.astype(jnp.float32),)),
    "mask of integers": (lambda q, k, v, m: attend(q, k, v, lambda s: s + (1 - m).astype(jnp.float32) * LOWEST),
                         (KEYS.astype(jnp.int32),)),
    "mask of truth values": (lambda q, k, v, m: attend(q, k, v, lambda s: s + jnp.where(m, 0.0, -1e10)), (KEYS,)),
    "left padding beside causal": (
        lambda q, k, v, b: attend(q, k, v, lambda s: jnp.where(CAUSAL, s + b, LOWEST)), (padding(LOWEST),)),
    "left padding of -inf beside causal": (
        lambda q, k, v, b: attend(q, k, v, lambda s: jnp.where(CAUSAL, s + b, -1e30)), (padding(-jnp.inf, (2, 4)),)),
    "bias after causal": (
        lambda q, k, v, b: attend(q, k, v, lambda s: jnp.where(CAUSAL, s, -1e9) + b), (padding(-1e9),)),
    "causal added beside a bias": (
        lambda q, k, v, b: attend(q, k, v, lambda s: s + b + jnp.where(CAUSAL, 0.0, -1e9)), (padding(-1e9),)),
    "sink of -inf beside a mask": (
        lambda q, k, v, m, sinks: attend(
            q, k, v, lambda s: jnp.concatenate(
                [jnp.where(m, s, -1e30), jnp.broadcast_to(sinks[None, :, None, None], (B, H, Q, 1))], -1),
            lambda p: p[..., :-1]), (KEYS, SINKS)),
    "dropout of hidden rows": (
        lambda q, k, v, m, keep: attend(q, k, v, lambda s: jnp.where(m, s, -1e30),
                                        lambda p: jnp.where(keep, p / 0.75, 0.0)),
        (KEYS, jnp.asarray(np.random.default_rng(4).random((B, H, Q, Q)) < 0.75))),
    "lengths of nothing": (
        lambda q, k, v, n: attend(q, k, v, lambda s: jnp.where(
            (jnp.arange(Q) < n[:, None])[:, None, None], s, LOWEST)), (jnp.asarray([0, 7], jnp.int32),)),
    "logits of 1000": (lambda q, k, v: attend(40 * q, 40 * k, v), ()),
}


def distance(found, expected):
    return np.linalg.norm(np.asarray(found, np.float64) - expected) / max(np.linalg.norm(expected), 1e-30)


@pytest.mark.parametrize("name", PROGRAMS)
def test_fused_program_gives_what_the_original_gives(name):
    f, more = PROGRAMS[name]
    inputs = [random(B, Q, H, D, seed=i) for i in range(3)]
    d_o = random(B, Q, H, D, seed=7)
    step = lambda q, k, v: jax.vjp(lambda *x: f(*x, *more), q, k, v)[1](d_o)
    fused, original = heddle.jax.fuse(step), jax.jit(step)
    assert fused.lower(*inputs).as_text().count("stablehlo.custom_call @heddle") == 2
    for part, e, g in zip(("dQ", "dK", "dV"), original(*inputs), fused(*inputs), strict=True):
        e = np.asarray(e, np.float64)
        assert np.isfinite(e).all() and np.linalg.norm(e) > 0
        assert distance(g, e) < (1e-3 if "1000" in name else 2e-6), part  # of scores of 1000 the program's own roundings
    forward = heddle.jax.fuse(lambda *x: f(*x, *more))
    assert distance(forward(*inputs), np.asarray(f(*inputs, *more), np.float64)) < (1e-3 if "1000" in name else 2e-6)


@pytest.mark.parametrize("of_q, of_k", [(1e20, 1e20), (1e15, -1e25), (1e-25, 1e-25)])
def test_operands_scaled_one_by_one_whose_product_has_no_scale_in_f32_stay(of_q, of_k):
    f = lambda q, k, v: attend(q * np.float32(of_q), k * np.float32(of_k), v)
    inputs = random(B, Q, H, D, scale=1 / of_q), random(B, Q, H, D, seed=1, scale=1 / of_k), random(B, Q, H, D, seed=2)
    fused, expected = heddle.jax.fuse(f), np.asarray(jax.jit(f)(*inputs), np.float64)
    assert "stablehlo.custom_call @heddle" not in fused.lower(*inputs).as_text()
    assert np.isfinite(expected).all()
    assert distance(fused(*inputs), expected) < 2e-6


def test_a_number_of_a_row_beside_scores_of_16_bits_stays():
    """It leaves nothing of them there, and of their f32 a part that tells keys apart at random."""
    q, k, v = (random(B, Q, H, D, seed=i).astype(jnp.bfloat16) for i in range(3))
    rows = (random(B, 1, Q, 1, seed=3) * 1e7).astype(jnp.bfloat16)
    f = lambda q, k, v, rows: attend(q, k, v, of_scores=lambda s: s + rows)
    fused = heddle.jax.fuse(f)
    assert "stablehlo.custom_call @heddle" not in fused.lower(q, k, v, rows).as_text()
    whole = [x.astype(jnp.float32) for x in (q, k, v, rows)]
    assert "stablehlo.custom_call @heddle" in heddle.jax.fuse(f).lower(*whole).as_text()


def exactly(q, k, v):
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    s = np.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("types", [("bfloat16",) * 3, ("float16",) * 3, ("float32", "float32", "bfloat16"),
                                   ("float16", "bfloat16", "float16")])
def test_what_is_computed_in_f32_of_narrow_operands_keeps_its_precision(types):
    inputs = [random(B, Q, H, D, seed=i).astype(t) for i, t in enumerate(types)]
    f = lambda *x: attend(*(a.astype(jnp.float32) for a in x))
    fused, d_o = heddle.jax.fuse(f), random(B, Q, H, D, seed=7)
    assert fused.lower(*inputs).as_text().count("stablehlo.custom_call @heddle") == 1
    truth = exactly(*inputs)
    assert distance(fused(*inputs), truth) <= 2 * distance(jax.jit(f)(*inputs), truth)
    step = lambda f: lambda *x: jax.vjp(f, *x)[1](d_o)
    truths = jax.jit(step(f))(*(x.astype(jnp.float32) for x in inputs))
    for truth, expected, found in zip(truths, jax.jit(step(f))(*inputs), heddle.jax.fuse(step(f))(*inputs), strict=True):
        truth = np.asarray(truth, np.float64)
        assert found.dtype == expected.dtype
        assert distance(found, truth) <= 2 * distance(expected, truth) + 1e-6


def test_weights_that_the_program_rounds_stay_with_narrow_operands():
    def f(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * D**-0.5
        p = jax.nn.softmax(s, axis=-1).astype(v.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", p, v, preferred_element_type=jnp.float32)

    inputs = [random(B, Q, H, D, seed=i).astype(jnp.bfloat16) for i in range(3)]
    fused, truth = heddle.jax.fuse(f), exactly(*inputs)
    text = fused.lower(*inputs).as_text()
    assert "stablehlo.custom_call @heddle" in text
    assert "stablehlo.convert" not in text
    assert distance(fused(*inputs), truth) <= 2 * distance(jax.jit(f)(*inputs), truth)


def test_what_is_f32_is_not_converted():
    inputs, d_o = [random(B, Q, H, D, seed=i) for i in range(3)], random(B, Q, H, D, seed=7)
    text = heddle.jax.fuse(lambda *x: jax.vjp(attend, *x)[1](d_o)).lower(*inputs).as_text()
    assert text.count("stablehlo.custom_call @heddle") == 2
    assert "stablehlo.convert" not in text


@pytest.mark.parametrize("of", [lambda x: x * jnp.bfloat16(0.7), lambda x: x / jnp.bfloat16(1.43), lambda x: x + jnp.bfloat16(0.7),
                                lambda x: x * jnp.exp2(-jnp.arange(1, 2, dtype=jnp.float32)).astype(jnp.bfloat16)],
                         ids=["multiplied", "divided", "shifted", "by a slope"])
def test_arithmetic_on_distances_in_bf16_is_the_programs_own(of):
    """It is rounded by its type, as XLA does on a GPU: a call is given the result, and computes none."""
    def program(q, k, v):
        distances = (jnp.arange(200) - jnp.arange(4)[:, None]).astype(jnp.bfloat16)
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + of(distances).astype(jnp.float32)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, axis=-1), v)

    q, k = (jnp.zeros((1, length, 1, 8)) for length in (4, 200))
    text = heddle.jax.fuse(program).lower(q, k, k).as_text("hlo")
    (call,) = (line for line in text.splitlines() if 'custom_call_target="heddle"' in line)
    assert "bf16[4,200]" in call.partition("operand_layout_constraints=")[2].partition("api_version")[0]
