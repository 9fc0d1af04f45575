"""Layers that lax.cond and lax.switch choose, without checkpoints, fused beside XLA's own: the values and gradients of every
branch, in f64, and in f32 held to f64. Of what one conditional keeps for another nothing is of rows and keys."""

import re

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64

B, G, R, T, S, H, D = 2, 2, 3, 11, 13, 8, 5
N = G * R
LOWEST = float(np.finfo(np.float32).min)
CAUSAL = lambda: jnp.arange(T)[:, None] + (S - T) >= jnp.arange(S)


@pytest.fixture(autouse=True)
def x64():
    with enable_x64(True):
        yield


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def attend(q, k, v, of_scores=lambda s: s, of_weights=lambda p: p):
    k, v = (jnp.repeat(x, N // x.shape[1], 1) for x in (k, v))
    p = jax.nn.softmax(of_scores(jnp.einsum("bhqd,bhkd->bhqk", q, k) * H**-0.5), axis=-1)
    return jnp.einsum("bhqk,bhkd->bhqd", of_weights(p), v)


def causal(q, k, v, mask):
    return attend(q, k, v, lambda s: jnp.where(CAUSAL(), s, LOWEST))


def hidden(q, k, v, mask):
    """Some rows see no key."""
    return attend(q, k, v, lambda s: jnp.where(mask, s, LOWEST))


def biased(q, k, v, mask):
    return attend(q, k, v, lambda s: s + jnp.where(mask, 0.0, -1e9))


def full(q, k, v, mask):
    return attend(q, k, v)


def rows(q, k, v, mask):
    return jnp.broadcast_to(jnp.mean(v, (1, 2), keepdims=True), (B, N, T, D)) * jnp.sin(q[..., :1])


def weighed(q, k, v, mask):
    return attend(q, k, v, of_weights=lambda p: p * jnp.cos(q[..., :1]))


def kept(p):
    return jnp.asarray(np.random.default_rng(9).random((B, N, T, S)) < 0.75)


def dropped(q, k, v, mask):
    return attend(q, k, v, of_weights=lambda p: jnp.where(kept(p), p / 0.75, 0))


def layers(q, k, v, mask):
    """A loop of its own in the branch."""
    step = lambda q, scale: (q + jnp.pad(causal(q * scale, k, v, mask), ((0, 0), (0, 0), (0, 0), (0, H - D))), None)
    return lax.scan(step, q, jnp.asarray([1.0, 0.5, 2.0], q.dtype))[0][..., :D]


def nested(q, k, v, mask):
    return lax.cond(jnp.sum(v) > 1e9, rows, hidden, q, k, v, mask)


PROGRAMS = {
    "attention or none": [rows, causal],
    "none or attention": [hidden, rows],
    "causal or full": [full, causal],
    "one of three": [causal, full, rows],
    "one of three masks": [hidden, biased, causal],
    "dropped or not": [full, dropped],
    "weighed or not": [weighed, full],
    "a loop or attention": [layers, hidden],
    "a conditional or attention": [nested, biased],
}
MASKS = {"none": np.ones((1, 1, 1, S), bool), "keys": np.arange(S) < np.asarray([5, S])[:, None, None, None],
         "rows": np.random.default_rng(3).random((B, 1, T, S)) < np.linspace(0, 0.6, T)[:, None]}


def chosen_by(branches):
    """A number in the order of the branches, out of range too."""
    if len(branches) == 2:
        return lambda number, *x: lax.cond(number > 0, branches[1], branches[0], *x)
    return lambda number, *x: lax.switch(number, branches, *x)


def training_step(choose):
    def step(number, mask, q, k, v, d_o):
        o, gradients = jax.vjp(lambda q, k, v: choose(number, q, k, v, mask), q, k, v)
        return o, *gradients(d_o)

    return step


def scanned(choose):
    """Every branch in its turn, in one program."""
    def step(numbers, mask, q, k, v, d_o):
        def layer(q, number):
            return q + jnp.pad(choose(number, q, k, v, mask), ((0, 0), (0, 0), (0, 0), (0, H - D))), None

        o, gradients = jax.vjp(lambda q: lax.scan(layer, q, numbers)[0], q)
        return o, *gradients(jnp.concatenate([d_o, d_o], -1)[..., :H])

    return step


def operands(heads, mask, dtype):
    arrays = random(B, N, T, H), random(B, heads, S, H, seed=1), random(B, heads, S, D, seed=2), random(B, N, T, D, seed=7)
    return [jnp.asarray(MASKS[mask]), *(jnp.asarray(x, dtype) for x in arrays)]


def norm(found, truth):
    return np.linalg.norm(np.asarray(found, np.float64) - truth) / np.linalg.norm(truth)


def program(fused, *given):
    return fused.lower(*given).as_text("hlo")


def large_arrays(step, *given):
    """Shapes of entries, heads, rows and keys in the fused program."""
    return re.findall(rf"\w+\[[0-9,]*{B},[0-9,]*\b{T},{S}\]", program(heddle.jax.fuse(step), *given))


@pytest.mark.parametrize(("heads", "mask"), [(N, "none"), (N, "keys"), (G, "rows")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_branch_is_the_original(name, heads, mask):
    branches = PROGRAMS[name]
    step = training_step(chosen_by(branches))
    given = operands(heads, mask, jnp.float64)
    fused, original = heddle.jax.fuse(step), jax.jit(step)
    narrow = operands(heads, mask, jnp.float32)
    calls = program(fused, jnp.asarray(0), *given).count('custom_call_target="heddle"')
    assert calls == 2 * sum(branch is not rows for branch in branches)
    for number in range(-1, len(branches) + 1):
        truth = original(jnp.asarray(number), *given)
        for part, t, f, e, n in zip(("O", "dQ", "dK", "dV"), truth, fused(jnp.asarray(number), *given),
                                    original(jnp.asarray(number), *narrow), fused(jnp.asarray(number), *narrow), strict=True):
            if np.any(t):
                assert norm(f, t) < 1e-12, (number, part)
                assert norm(n, t) <= 2 * norm(e, t) + 1e-6, (number, part)
            else:
                assert not np.any(f) and not np.any(n), (number, part)


@pytest.mark.parametrize("name", PROGRAMS)
def test_conditional_in_a_loop_is_the_original(name):
    branches = PROGRAMS[name]
    step = scanned(chosen_by(branches))
    given = operands(G, "keys", jnp.float64)
    fused, original = heddle.jax.fuse(step), jax.jit(step)
    numbers = jnp.asarray([1, 0, 2, 1, -1])
    calls = program(fused, numbers, *given).count('custom_call_target="heddle"')
    assert calls == 2 * sum(branch is not rows for branch in branches)
    for part, t, f in zip(("O", "dQ"), original(numbers, *given), fused(numbers, *given), strict=True):
        assert norm(f, t) < 1e-12, part


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_of_rows_and_keys_is_kept(name):
    if PROGRAMS[name][1] is dropped:
        pytest.skip("the mask of what is kept is the program's")
    given = operands(G, "keys", jnp.float32)
    choose = chosen_by(PROGRAMS[name])
    assert large_arrays(jax.jit(training_step(choose)), jnp.asarray(0), *given) == []
    assert large_arrays(jax.jit(scanned(choose)), jnp.asarray([1, 0, 2]), *given) == []
