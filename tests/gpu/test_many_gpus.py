"""Several NVIDIA GPUs of one host: ops and unmodified programs stay cut, with the collectives that they need and no more.

Everything is compared with the same on one GPU.
"""

import contextlib
import re
from functools import partial

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import attention, layer_norm, ring_attention, ring_order, ring_restore, rms_norm, rope
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

GPUS = len(jax.devices("cuda"))
pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "reduce-scatter", "collective-permute")
MODES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit, "manual": AxisType.Auto}
B, T, N, K, H = 2, 256, 4 * GPUS, 2 * GPUS, 64


def random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.bfloat16)


def qkv(kv_heads=K):
    return random(B * GPUS, T, N, H), random(B * GPUS, T, kv_heads, H, seed=1), random(B * GPUS, T, kv_heads, H, seed=2)


def collectives(function, *arguments):
    """{name: count} of the collectives in a compiled function, which has to hold a fused call."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    assert 'custom_call_target="heddle"' in text
    found = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in COLLECTIVES}
    return {name: count for name, count in found.items() if count}


def assert_close(found, expected, tolerance=0.02):
    for got, one in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        got, one = (np.asarray(x, np.float64) for x in (got, one))
        assert np.linalg.norm(got - one) <= tolerance * np.linalg.norm(one)


def check(mode, function, arrays, specs, out_spec, forward, backward):
    """function and its gradients over all GPUs have just these collectives and the values of one GPU."""
    mesh = jax.make_mesh((GPUS,), ("gpus",), axis_types=(MODES[mode],))
    whole = jax.device_put(random(*jax.eval_shape(function, *arrays).shape, seed=9), NamedSharding(mesh, out_spec))
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs)]
    sharded = function
    if mode == "manual":
        sharded = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out_spec)
    pulled = lambda f: lambda d_o, *a: jax.vjp(f, *a)[1](d_o)
    with jax.set_mesh(mesh) if mode == "explicit" else contextlib.nullcontext():
        assert collectives(sharded, *placed) == forward
        assert collectives(pulled(sharded), whole, *placed) == backward
        found = jax.jit(sharded)(*placed), jax.jit(pulled(sharded))(whole, *placed)
    assert found[0].sharding.num_devices == GPUS
    alone = jax.device_put(np.asarray(whole), jax.devices("cuda")[0])
    assert_close(found, (jax.jit(function)(*arrays), jax.jit(pulled(function))(alone, *arrays)))


@pytest.mark.parametrize("cut", [P("gpus"), P(None, None, "gpus")], ids=["batch", "heads"])
@pytest.mark.parametrize("mode", MODES)
def test_attention_needs_nothing(mode, cut):
    check(mode, partial(attention, causal=True), qkv(), (cut,) * 3, cut, {}, {})


@pytest.mark.parametrize("mode", ["auto", "explicit"])
def test_dropout_draws_what_one_gpu_draws(mode):
    cut = P("gpus")
    check(mode, partial(attention, dropout=(0.3, 5)), qkv(), (cut,) * 3, cut, {}, {})


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_of_a_shared_bias_is_summed(mode):
    arrays, cut = (*qkv(), random(1, N, T, T, seed=4)), P("gpus")
    check(mode, lambda q, k, v, bias: attention(q, k, v, bias=bias), arrays, (cut, cut, cut, P()), cut, {},
          {"all-reduce": 1})


@pytest.mark.parametrize("mode", ["auto", "explicit"])
def test_few_kv_heads_are_taken_and_their_gradients_summed(mode):
    mesh = jax.make_mesh((GPUS,), ("gpus",), axis_types=(MODES[mode],))
    arrays, specs = qkv(1), (P(None, None, "gpus"), P(), P())
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs)]
    gradient = jax.grad(lambda *x: jnp.sum(attention(*x, causal=True).astype(jnp.float32) ** 2), (0, 1, 2))
    with jax.set_mesh(mesh) if mode == "explicit" else contextlib.nullcontext():
        assert set(collectives(gradient, *placed)) == {"all-reduce"}
        found = jax.jit(gradient)(*placed)
    assert_close(found, jax.jit(gradient)(*arrays))


@pytest.mark.parametrize("mode", MODES)
def test_rms_norm_sums_the_gradient_of_its_weight(mode):
    cut = P("gpus")
    check(mode, rms_norm, (random(64 * GPUS, T), random(T, seed=1)), (cut, P()), cut, {}, {"all-reduce": 1})


@pytest.mark.parametrize("mode", MODES)
def test_layer_norm_sums_the_gradients_of_weight_and_bias(mode):
    cut = P("gpus")
    check(mode, layer_norm, (random(64 * GPUS, T), random(T, seed=1), random(T, seed=2)), (cut, P(), P()), cut, {},
          {"all-reduce": 1})


@pytest.mark.parametrize("mode", MODES)
def test_rope_needs_nothing(mode):
    cut = P("gpus")
    check(mode, rope, (random(B * GPUS, T, N, H),), (cut,), cut, {}, {})


@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_ring(causal, order):
    arrays = [random(B, 256 * GPUS, heads, H, seed=i) for i, heads in enumerate((N, K, K))]
    mesh = jax.make_mesh((GPUS,), ("sequence",), axis_types=(AxisType.Auto,))
    cut = P(None, "sequence")
    attend = jax.shard_map(partial(ring_attention, axis_name="sequence", causal=causal, order=order), mesh=mesh,
                           in_specs=(cut,) * 3, out_specs=cut)
    ring = attend if order == "contiguous" else lambda *x: ring_restore(attend(*(ring_order(a, GPUS) for a in x)), GPUS)
    total = lambda f: jax.value_and_grad(lambda *x: jnp.sum(f(*x).astype(jnp.float32) ** 2), (0, 1, 2))
    assert_close(jax.jit(total(ring))(*arrays), jax.jit(total(partial(attention, causal=causal)))(*arrays))
    placed = [jax.device_put(x, NamedSharding(mesh, cut)) for x in arrays]
    pulled = lambda *x: jax.vjp(attend, *x)[1](x[0])
    assert set(collectives(attend, *placed)) == set(collectives(pulled, *placed)) == {"collective-permute"}


def plain(q, k, v):
    """Causal attention as people write it."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1]**-0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


@pytest.mark.parametrize("cut", [P("gpus"), P(None, None, "gpus")], ids=["batch", "heads"])
def test_unmodified_programs(cut):
    """XLA hands over each GPU's own program."""
    mesh = jax.make_mesh((GPUS,), ("gpus",), axis_types=(AxisType.Auto,))
    arrays = qkv(N)
    placed = [jax.device_put(x, NamedSharding(mesh, cut)) for x in arrays]
    gradient = jax.value_and_grad(lambda *x: jnp.sum(plain(*x).astype(jnp.float32) ** 2), (0, 1, 2))
    expected = jax.jit(plain)(*arrays), jax.jit(gradient)(*arrays)
    with heddle.jax.enable():
        assert collectives(plain, *placed) == {}
        assert set(collectives(gradient, *placed)) == {"all-reduce"}  # of the loss
        assert_close((jax.jit(plain)(*placed), jax.jit(gradient)(*placed)), expected)


def test_an_op_on_each_gpu_by_itself():
    """A kernel's plan belongs to one GPU: each makes its own."""
    results = [attention(*(jax.device_put(x, device) for x in qkv()), causal=True) for device in jax.devices("cuda")]
    for one in results[1:]:
        np.testing.assert_array_equal(np.asarray(one), np.asarray(results[0]))
