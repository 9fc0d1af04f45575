"""ring_attention over eight devices, against attention on one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import attention, ring_attention, ring_order, ring_restore
from jax.sharding import PartitionSpec as P
from meshes import HAS_EXPLICIT, make_mesh, shard_map

B, T, N, K, H = 2, 64, 4, 2, 16


def random(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def ring(devices, layout="BTNH", arranged=False, segments=None, **options):
    """ring_attention of whole arrays over a mesh of (8 / devices, devices)."""
    mesh = make_mesh((8 // devices, devices), ("data", "sequence"))
    length = 1 if layout == "BTNH" else 2
    rows = P("data", "sequence") if layout == "BTNH" else P("data", None, "sequence")
    batch = rows if devices > 2 else P(None, *rows[1:])  # too few entries for every device
    attend = partial(ring_attention, **{"axis_name": "sequence", "layout": layout, "return_lse": True, **options})
    arrange = (lambda x, axis: ring_order(x, devices, axis)) if arranged else lambda x, axis: x
    restore = (lambda x, axis: ring_restore(x, devices, axis)) if arranged else lambda x, axis: x

    def whole(q, k, v):
        ids = () if segments is None else (arrange(segments, 1),)
        o, lse = shard_map(
            lambda q, k, v, *ids: attend(q, k, v, segment_ids=ids[0] if ids else None), mesh=mesh,
            in_specs=(batch,) * 3 + (P(batch[0], "sequence"),) * len(ids), out_specs=(batch, P(batch[0], None, "sequence")),
        )(*(arrange(x, length) for x in (q, k, v)), *ids)
        return restore(o, length), restore(lse, 2)

    return whole


def operands(dtype=jnp.float32, t=T, d=H):
    return random(B, t, N, H, dtype=dtype), random(B, t, K, H, seed=1, dtype=dtype), random(B, t, K, d, seed=2, dtype=dtype)


def both(f, arrays):
    def loss(*a):
        o, lse = f(*a)
        return jnp.sum(jnp.sin(o)) + jnp.sum(jnp.cos(lse)), (o, lse)

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*arrays)


@pytest.mark.parametrize("devices, options", [
    (8, {}), (4, {"causal": True, "order": "contiguous"}), (4, {"causal": True, "arranged": True}),
    (1, {"causal": True, "arranged": True}), (2, {"causal": True, "arranged": True, "layout": "BNTH", "soft_cap": 2.0})])
def test_values_and_gradients(devices, options):
    arrays = operands(d=24 if devices == 4 else H)
    arrays = [jnp.swapaxes(x, 1, 2) for x in arrays] if options.get("layout") == "BNTH" else arrays
    plain = {name: x for name, x in options.items() if name not in ("order", "arranged")}
    ours = both(ring(devices, **options), arrays)
    theirs = both(lambda *x: attention(*x, **plain, return_lse=True), arrays)
    for got, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5)


def test_segments():
    ids = jnp.asarray(np.sort(np.random.default_rng(3).integers(0, 5, (B, T)), -1))
    ours = both(ring(4, arranged=True, causal=True, segments=ids), operands())
    theirs = both(lambda *x: attention(*x, causal=True, segment_ids=ids, return_lse=True), operands())
    for got, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("options", [{}, {"causal": True, "arranged": True}])
def test_logits_in_the_thousands(options):
    """Beside a maximum of a thousand one f32 holds no sum: devices pass on both."""
    q, k, v = operands()
    plain = {name: x for name, x in options.items() if name != "arranged"}
    loss = lambda f: jax.jit(jax.grad(lambda *x: jnp.sum(jnp.sin(f(*x)[0])), (0, 1, 2)))
    ours = loss(ring(4, **options))(1000 * q, k, v)
    theirs = loss(partial(attention, **plain, return_lse=True))(1000 * q, k, v)
    for got, expected in zip(ours, theirs):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_low_precision():
    """As exact as attention on one device."""
    arrays = operands(jnp.bfloat16)
    d_o = random(B, T, N, H, seed=4, dtype=jnp.bfloat16)
    gradients = lambda f, d_o, *x: (f(*x), *jax.vjp(f, *x)[1](d_o))
    plain = partial(attention, causal=True)
    mesh, cut = make_mesh((2, 4), ("data", "sequence")), P("data", "sequence")
    attend = shard_map(partial(ring_attention, axis_name="sequence", causal=True, order="contiguous"), mesh=mesh,
                       in_specs=(cut,) * 3, out_specs=cut)
    found = jax.jit(partial(gradients, attend))(d_o, *arrays)
    one = gradients(plain, d_o, *arrays)
    exact = gradients(plain, d_o.astype(jnp.float32), *(x.astype(jnp.float32) for x in arrays))
    for got, alone, wide in zip(found, one, exact):
        assert got.dtype == jnp.bfloat16
        error, allowed = (np.abs(np.asarray(x, np.float64) - np.asarray(wide, np.float64)).max() for x in (got, alone))
        assert error <= 2 * allowed


def test_only_neighbours_are_spoken_to(collectives):
    run = ring(4, causal=True)
    assert set(collectives(run, *operands())) == {"collective-permute"}
    assert set(collectives(jax.grad(lambda *x: jnp.sum(run(*x)[0]), (0, 1, 2)), *operands())) == {"collective-permute"}


if HAS_EXPLICIT:  # an older JAX maps over some axes in other words

    def test_a_mesh_of_which_only_the_sequence_is_mapped_over():
        mesh = make_mesh((2, 4), ("data", "sequence"))
        cut = P(None, "sequence")
        run = shard_map(partial(ring_attention, axis_name="sequence"), mesh=mesh, axis_names={"sequence"}, in_specs=(cut,) * 3,
                        out_specs=cut)
        with jax.set_mesh(mesh):
            np.testing.assert_allclose(jax.jit(run)(*operands()), attention(*operands()), rtol=1e-4, atol=2e-5)


def test_order():
    x = jnp.arange(16)[None]
    np.testing.assert_array_equal(ring_order(x, 4)[0, :4], [0, 1, 14, 15])
    np.testing.assert_array_equal(ring_restore(ring_order(x, 4), 4), x)
    with pytest.raises(ValueError, match="ring_order: x has 16 rows along axis 1, expected a multiple of twice the 3 devices"):
        ring_order(x, 3)


def test_refusals():
    for kind, sentence, options, t in [
        (ValueError, "ring_attention: order is 'striped', expected 'zigzag' or 'contiguous'", {"order": "striped"}, T),
        (ValueError, "ring_attention: q has length 3, expected an even one", {"causal": True}, 12),
        (ValueError, "ring_attention: soft_cap is -1.0", {"soft_cap": -1}, T),
        (TypeError, "ring_attention: causal is str, expected True or False", {"causal": "bottom_right"}, T),
        (NameError, "ring_attention: axis_name is 'rows', expected an axis of the mesh", {"axis_name": "rows"}, T),
    ]:
        with pytest.raises(kind, match=sentence):
            ring(4, **options)(*operands(t=t))
    with pytest.raises(NameError, match="ring_attention: axis_name is 's', expected an axis of the mesh"):
        ring_attention(*operands(), axis_name="s")
    for kind, sentence, arguments in [
        (TypeError, "ring_restore: devices is '2', expected an int", (jnp.ones((1, 8)), "2")),
        (ValueError, "ring_restore: axis is 2, expected one of the 2 axes of x", (jnp.ones((1, 8)), 2, 2)),
    ]:
        with pytest.raises(kind, match=sentence):
            ring_restore(*arguments)
