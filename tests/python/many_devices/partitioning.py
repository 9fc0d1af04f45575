"""Ops over eight devices: every op stays cut along batch, heads and rows, and only gradients of whole operands are summed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import attention, layer_norm, rms_norm, rope
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import MODES, inside, make_mesh, shard_map

B, T, N, H = 4, 10, 4, 16
# Of both gradients: the compiler of JAX 0.5.0 leaves them apart, that of 0.10.2 joins them.
SUMS_OF_TWO = 2 if jax.__version_info__ <= (0, 5, 0) else 1
COMPILED = tuple(mode for mode in MODES if mode != "manual")


def random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def under(mode, function, arrays, specs, out_specs):
    """function of arrays cut by `specs`, its arguments placed, and the context to trace it in."""
    mesh = make_mesh((4, 2), ("data", "model"), mode == "explicit")
    if mode == "manual":
        function = shard_map(function, mesh=mesh, in_specs=specs, out_specs=out_specs)
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs)]
    return function, placed, inside(mesh, mode == "explicit")


def check(collectives, mode, function, arrays, specs, out_spec, forward, backward, cotangent, differentiated=None):
    """Values and gradients are those of one device; the compiled text has just these collectives."""
    sharded, placed, context = under(mode, function, arrays, specs, out_spec)
    wanted = tuple(range(len(arrays))) if differentiated is None else differentiated
    loss = lambda f: lambda *a: jnp.sum(f(*a) * cotangent)
    with context:
        if mode == "explicit":
            cotangent_placed = jax.device_put(cotangent, NamedSharding(placed[0].sharding.mesh, out_spec))
        else:
            cotangent_placed = cotangent
        pull = lambda g, *a: jax.vjp(sharded, *a)[1](g)
        value = jax.jit(sharded)(*placed)
        if mode != "manual":
            assert value.sharding.is_equivalent_to(NamedSharding(value.sharding.mesh, out_spec), value.ndim)
        gradients = jax.jit(lambda g, *a: tuple(pull(g, *a)[i] for i in wanted))(cotangent_placed, *placed)
        assert collectives(sharded, *placed) == forward
        found = collectives(lambda g, *a: tuple(pull(g, *a)[i] for i in wanted), cotangent_placed, *placed)
    np.testing.assert_allclose(value, function(*arrays), rtol=1e-4, atol=1e-5)
    for got, expected in zip(gradients, jax.jit(jax.grad(loss(function), wanted))(*arrays)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    assert found == backward


@pytest.mark.parametrize("mode", MODES)
def test_rms_norm_sums_the_gradient_of_its_weight(collectives, mode):
    out = P("data", "model", None)
    check(collectives, mode, rms_norm, (random(B, T, H), random(H, seed=1)), (out, P()), out, {}, {"all-reduce": 1},
          random(B, T, H, seed=2))


@pytest.mark.parametrize("mode", MODES)
def test_layer_norm_sums_the_gradients_of_weight_and_bias(collectives, mode):
    out = P("data", "model", None)
    check(collectives, mode, layer_norm, (random(B, T, H), random(H, seed=1), random(H, seed=3)), (out, P(), P()), out, {},
          {"all-reduce": SUMS_OF_TWO}, random(B, T, H, seed=2))


@pytest.mark.parametrize("norm", [rms_norm, layer_norm])
def test_rows_of_unequal_parts(norm):
    """A sequence that is cut in 4, less its last row: what is beyond a part's rows is in no sum."""

    def plain(x, weight):
        x = x - jnp.mean(x, -1, keepdims=True) if norm is layer_norm else x
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * weight

    x, weight = random(B, 8, H), random(H, seed=1)
    gradients = lambda f: jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.sin(f(x[:, :-1], w))), (0, 1)))
    sharded, placed, _ = under("auto", gradients(norm), (x, weight), (P(None, "data"), P()), None)
    for got, expected in zip(sharded(*placed), gradients(plain)(x, weight)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_vmap_over_weights_of_shared_rows():
    x, weights = random(B, T, H), random(4, H, seed=1)
    function, placed, _ = under("auto", jax.vmap(rms_norm, (None, 0)), (x, weights), (P("model"), P("data")), None)
    np.testing.assert_allclose(jax.jit(function)(*placed), function(x, weights), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_rope_needs_nothing(collectives, mode):
    out = P("data", "model", None, None) if mode != "manual" else P("data", None, "model", None)
    check(collectives, mode, rope, (random(B, T, N, H),), (out,), out, {}, {}, random(B, T, N, H, seed=2))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_needs_nothing(collectives, mode, kv_heads):
    arrays = random(B, T, N, H), random(B, T, kv_heads, H, seed=1), random(B, T, kv_heads, H, seed=2)
    cut = P("data", None, "model", None)
    check(collectives, mode, lambda q, k, v: attention(q, k, v, causal=True), arrays, (cut,) * 3, cut, {}, {},
          random(B, T, N, H, seed=3))


@pytest.mark.parametrize("mode", MODES)
def test_log_sum_exps_and_their_gradients_need_nothing(collectives, mode):
    arrays = [random(B, T, N, H, seed=i) for i in range(3)]
    check(collectives, mode, lambda q, k, v: attention(q, k, v, causal=True, return_lse=True)[1], arrays,
          (P("data", None, "model", None),) * 3, P("data", "model", None), {}, {}, random(B, N, T, seed=3), (0, 1))


@pytest.mark.parametrize("mode", COMPILED)
def test_few_kv_heads_are_taken_and_their_gradients_summed(collectives, mode):
    arrays = random(B, T, N, H), random(B, T, 1, H, seed=1), random(B, T, 1, H, seed=2)
    q, kv = P("data", None, "model", None), P("data", None, None, None)
    sharded, placed, context = under(mode, lambda q, k, v: attention(q, k, v, causal=True), arrays, (q, kv, kv), q)
    gradient = jax.grad(lambda *a: jnp.sum(jnp.sin(attention(*a, causal=True))), (0, 1, 2))
    with context:
        assert collectives(sharded, *placed) == {}
        assert set(collectives(gradient, *placed)) <= {"all-reduce"}
        found = jax.jit(gradient)(*placed)
    for got, expected in zip(found, gradient(*arrays)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("heads, kv_heads", [(8, 2), (12, 3)])
def test_heads_that_are_cut_finer_than_those_of_keys(collectives, heads, kv_heads):
    """No part of a mesh axis is left to cut the keys' heads: JAX cannot read such shardings."""
    arrays = *(random(B, T, n, H, seed=i) for i, n in enumerate((heads, kv_heads, kv_heads))),
    cut, whole = P(None, None, "data", None), P()
    backward = {"all-reduce": SUMS_OF_TWO}
    check(collectives, "auto", lambda q, k, v: attention(q, k, v, causal=True), arrays, (cut, whole, whole), cut, {}, backward,
          random(B, T, heads, H, seed=3))


def test_one_head_of_keys_for_heads_that_no_axis_cuts(collectives):
    arrays = *(random(B, T, n, H, seed=i) for i, n in enumerate((3, 1, 1))),
    cut = P("data", None, None, None)
    check(collectives, "auto", lambda q, k, v: attention(q, k, v, causal=True), arrays, (cut,) * 3, cut, {}, {},
          random(B, T, 3, H, seed=3))


@pytest.mark.parametrize("heads, kv_heads", [(8, 2), (6, 6)])
def test_projections_whose_columns_are_cut_finer_than_heads(heads, kv_heads):
    """Reshaped to heads, columns that are cut in 4 leave 2 or 6 heads cut in 2, by a part of a mesh axis."""
    x, *weights = random(B, T, H), *(random(H, n * H, seed=i) for i, n in enumerate((heads, kv_heads, kv_heads), 1))

    def attend(x, *weights):
        q, k, v = ((x @ w).reshape(B, T, -1, H) for w in weights)
        return attention(rms_norm(rope(q), jnp.ones(H)), rope(k), v, causal=True)

    loss = lambda *a: jnp.sum(jnp.sin(attend(*a)))
    both = jax.jit(lambda *a: (attend(*a), jax.grad(loss, (0, 1, 2, 3))(*a)))
    sharded, placed, _ = under("auto", both, (x, *weights), (P("model"), *[P(None, "data")] * 3), None)
    for got, expected in zip(jax.tree.leaves(sharded(*placed)), jax.tree.leaves(both(x, *weights))):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_of_a_shared_bias_is_summed(collectives, mode):
    arrays = *(random(B, T, N, H, seed=i) for i in range(3)), random(1, N, T, T, seed=4)
    cut = P("data", None, "model", None)
    check(collectives, mode, lambda q, k, v, bias: attention(q, k, v, bias=bias), arrays,
          (cut, cut, cut, P(None, "model", None, None)), cut, {}, {"all-reduce": 1}, random(B, T, N, H, seed=3))


@pytest.mark.parametrize("mode", MODES)
def test_a_score_of_arrays_of_each_device(collectives, mode):
    """Inside shard_map its trace holds what JAX puts around values that differ over devices, or have a mesh."""

    def attend(q, k, v, slopes):
        by_head = jax.lax.stop_gradient(slopes)[:, None, None]
        score = lambda s, b, h, i, j: jnp.where(i - j < 6, s - by_head * abs(i - j), -jnp.inf)
        return attention(q, k, v, score=score)

    arrays = *(random(B, T, N, H, seed=i) for i in range(3)), jnp.abs(random(N, seed=4))
    cut = P("data", None, "model", None)
    check(collectives, mode, attend, arrays, (cut, cut, cut, P("model")), cut, {}, {}, random(B, T, N, H, seed=3), (0, 1, 2))


@pytest.mark.parametrize("mode", COMPILED)
def test_everything_else_follows_batch_and_heads(collectives, mode):
    q, k, v = (random(B, T, N, H, seed=i) for i in range(3))
    lengths = np.array([T, 3, 7, 0], np.int32)
    ids = np.sort(np.random.default_rng(1).integers(0, 3, (B, T)), -1)
    mask = np.random.default_rng(2).random((B, N, T, T)) < 0.7
    options = {"mask": mask, "kv_lengths": lengths, "segment_ids": ids, "sink": random(N, seed=4),
               "score": lambda s, b, h, i, j: s * 0.5 ** (h + b)}
    cut = P("data", None, "model", None)
    sharded, placed, context = under(mode, lambda *x: attention(*x, **options), (q, k, v), (cut,) * 3, cut)
    with context:
        found = jax.jit(sharded)(*placed)
        assert "all-gather" not in collectives(sharded, *placed)
    np.testing.assert_allclose(found, attention(q, k, v, **options), rtol=1e-4, atol=1e-5)


def test_a_cotangent_that_is_whole(collectives):
    """The gradient of a sum arrives replicated; it is cut, nothing is gathered."""
    cut = P("data", None, "model", None)
    function, placed, _ = under("auto", lambda *x: attention(*x, causal=True), [random(B, T, N, H, seed=i) for i in range(3)],
                                (cut,) * 3, cut)
    gradient = jax.grad(lambda *x: jnp.sum(function(*x)), (0, 1, 2))
    assert collectives(gradient, *placed) == {}
    for x in jax.jit(gradient)(*placed):
        assert x.sharding.is_equivalent_to(NamedSharding(x.sharding.mesh, cut), 4)


def test_a_sequence_that_is_cut_is_gathered_and_right(collectives):
    arrays = [random(B, 16, N, H, seed=i) for i in range(3)]
    function, placed, _ = under("auto", lambda *x: attention(*x, causal=True), arrays, (P(None, "data"),) * 3, P())
    np.testing.assert_allclose(jax.jit(function)(*placed), function(*arrays), rtol=1e-4, atol=1e-5)


def test_vmap_over_a_cut_axis(collectives):
    x = random(4, B, T, N, H)
    function, placed, _ = under("auto", jax.vmap(lambda q: attention(q, q, q, causal=True)), (x,), (P("data", "model"),), P())
    assert collectives(function, *placed) == {}
    np.testing.assert_allclose(jax.jit(function)(*placed), function(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", COMPILED)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_dropout_needs_nothing(collectives, mode, kv_heads):
    arrays = random(B, T, N, H), random(B, T, kv_heads, H, seed=1), random(B, T, kv_heads, H, seed=2)
    cut = P("data", None, "model", None)
    check(collectives, mode, lambda q, k, v: attention(q, k, v, dropout=(0.3, 5)), arrays, (cut,) * 3, cut, {}, {},
          random(B, T, N, H, seed=3))


@pytest.mark.parametrize("mode", COMPILED)
def test_dropout_draws_in_the_backward_what_it_drew(collectives, mode):
    """v is a basis, so that the output shows what is kept, and the gradient of v what the backward thinks is kept."""
    q, k = random(B, T, N, H), random(B, T, N, H, seed=1)
    v = jnp.broadcast_to(jnp.eye(T, H)[None, :, None], (B, T, N, H))
    cut = P("data", None, "model", None)
    drop = lambda q, k, v: attention(q, k, v, dropout=(0.5, 3))
    function, placed, context = under(mode, drop, (q, k, v), (cut,) * 3, cut)
    with context:
        o, pull = jax.vjp(jax.jit(function), *placed)
        d_v = jax.jit(lambda o: pull(o)[2])(jnp.ones_like(o))
    np.testing.assert_allclose(o, drop(q, k, v), rtol=1e-4, atol=1e-5)  # and what one device draws
    np.testing.assert_allclose(np.asarray(d_v)[..., 0], np.asarray(o).sum(1)[..., :T].swapaxes(1, 2), rtol=1e-4,
                               atol=1e-5)
