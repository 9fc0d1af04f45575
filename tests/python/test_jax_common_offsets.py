"""Gradients where keys, values and output gradients each have something in common: what a bias of their projection adds.

dS of a row adds up to nothing. What rounding leaves of that sum is multiplied by what all keys share, and in dQ outweighs what
they differ in. JAX's own composition is the judge, both against float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import attention
from test_jax_huge_scores import composition, enable_x64, results

B, T, S, N, K, H = 2, 150, 260, 4, 2, 24


def arrays(dtype, offset, seed=7):
    """q, k, v and dO; of all but q, every head has an offset that its rows share."""
    draw = np.random.default_rng(seed)

    def rows(length, heads, offset):
        return jnp.asarray(0.3 * draw.standard_normal((B, length, heads, H)) + offset * draw.standard_normal((1, 1, heads, H)), dtype)

    return rows(T, N, 0), rows(S, K, offset), rows(S, K, offset), rows(T, N, offset)


def errors(got, expected):
    return [np.linalg.norm(np.asarray(x, np.float64) - y) / np.linalg.norm(y) for x, y in zip(got, map(np.asarray, expected))]


def judged(ours, theirs, inputs, d_o):
    """Errors of O, dQ, dK and dV, ours and the composition's in the inputs' type."""
    with enable_x64():
        exact = results(theirs, [x.astype(jnp.float64) for x in inputs], d_o)
        exact = [np.asarray(x) for x in exact]
    return errors(results(ours, inputs, d_o), exact), errors(results(theirs, inputs, d_o), exact)


CASES = {"plain": {}, "causal": {"causal": True}, "bias": {"bias": None}}


@pytest.mark.parametrize("dtype, dq, others", [(jnp.float32, 1e-5, 1e-5), (jnp.bfloat16, 2e-2, 6e-2)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("offset", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_as_near_as_the_composition(case, offset, dtype, dq, others):
    features = dict(CASES[case])
    if "bias" in features:
        features["bias"] = jnp.asarray(np.random.default_rng(3).standard_normal((1, N, T, S)), dtype)
    *inputs, d_o = arrays(dtype, offset)
    mine, plain = judged(lambda q, k, v: attention(q, k, v, **features), lambda q, k, v: composition(q, k, v, **features), inputs,
                         d_o)
    # dK keeps what D = rowsum(dO * O) of a rounded O is away from the composition's rowsum(P * dP).
    for own, naive, factor, least in zip(mine, plain, (2, 2, 4, 2), (others, dq, others, others)):
        assert own <= max(factor * naive, 4e-7 if dtype == jnp.float32 else 4e-3)
        assert own <= least


@pytest.mark.parametrize("fill", [-np.inf, -1e30])
def test_keys_out_of_sight_have_no_part_in_it(fill):
    """Whatever padded keys hold: a mean over all keys would be theirs."""
    *inputs, d_o = arrays(jnp.float32, 2.0)
    bias = jnp.where(jnp.arange(S) < 40, 0, fill).astype(jnp.float32)[None, None, None]
    bias = jnp.broadcast_to(bias, (1, 1, T, S))

    def gradients(k):
        return results(lambda q, k, v: attention(q, k, v, bias=bias), (inputs[0], k, inputs[2]), d_o)[1]

    clean = gradients(inputs[1])
    padded = gradients(inputs[1].at[:, 40:].set(1e25))
    np.testing.assert_array_equal(np.asarray(clean), np.asarray(padded))
    assert np.isfinite(clean).all()


def test_one_visible_key_gives_queries_no_gradient():
    *inputs, d_o = arrays(jnp.float32, 3.0)
    d_q = results(lambda q, k, v: attention(q, k, v, window=(0, 0)), inputs, d_o)[1]
    assert not np.asarray(d_q).any()
