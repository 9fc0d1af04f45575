"""One host of several, each with two of the devices of one mesh: host.py ADDRESS HOSTS HOST. Run by test_jax_many_hosts.py.

Every host draws the same whole arrays, keeps its own part, and compares its part of each result with what JAX's own
operations make of the whole.
"""

import os
import sys
from functools import partial
from pathlib import Path

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER.parents[2] / "bindings" / "python"), str(FOLDER.parent / "many_devices")]

import jax

jax.config.update("jax_cpu_collectives_implementation", "gloo")
address, hosts, host = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
jax.distributed.initialize(address, hosts, host)

import jax.numpy as jnp
import numpy as np
from heddle.jax import attention, ring_attention, rms_norm
from jax.sharding import NamedSharding, PartitionSpec as P
from meshes import make_mesh, shard_map

B, T, N, K, H = 2 * hosts, 32, 4, 2, 16


def random(*shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def over_hosts(mesh, array, spec):
    """A global array of which this process fills the parts of its own devices."""
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])


def compare(ours, theirs):
    for got, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        expected = np.asarray(expected)
        assert len(got.addressable_shards) == 2
        for part in got.addressable_shards:
            np.testing.assert_allclose(part.data, expected[part.index], rtol=1e-4, atol=2e-5)


def with_gradients(f, *arrays):
    return jax.jit(jax.value_and_grad(lambda *a: jnp.sum(jnp.sin(f(*a))), tuple(range(len(arrays)))))(*arrays)


def main():
    assert jax.process_count() == hosts and jax.device_count() == 2 * hosts and jax.local_device_count() == 2
    q, k, v = random(B, T, N, H, seed=0), random(B, T, K, H, seed=1), random(B, T, K, H, seed=2)
    plain = with_gradients(partial(jax.nn.dot_product_attention, is_causal=True), q, k, v)

    mesh = make_mesh((2 * hosts,), ("batch",))
    compare(with_gradients(partial(attention, causal=True), *(over_hosts(mesh, x, P("batch")) for x in (q, k, v))), plain)

    ring = shard_map(partial(ring_attention, axis_name="batch", causal=True, order="contiguous"), mesh=mesh,
                     in_specs=(P(None, "batch"),) * 3, out_specs=P(None, "batch"))
    compare(with_gradients(ring, *(over_hosts(mesh, x, P(None, "batch")) for x in (q, k, v))), plain)

    x, weight = random(B * T, 48, seed=3), random(48, seed=4)
    norm = lambda x, weight: x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * weight
    compare(with_gradients(rms_norm, over_hosts(mesh, x, P("batch")), over_hosts(mesh, weight, P())),
            with_gradients(norm, x, weight))
    print(f"host {host} of {hosts}: all parts agree")


main()
