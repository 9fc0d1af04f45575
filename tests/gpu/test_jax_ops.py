"""heddle.jax's ops on an NVIDIA GPU, against f64 on the host."""

import os
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import attention, dot_product_attention, layer_norm, rms_norm, rope

B, T, S, N, K, H = 2, 200, 264, 8, 2, 64


def random(*shape, seed=0, dtype=jnp.bfloat16):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def qkv(dtype=jnp.bfloat16, t=T, s=S):
    return random(B, t, N, H, dtype=dtype), random(B, s, K, H, seed=1, dtype=dtype), random(B, s, K, H, seed=2, dtype=dtype)


def reference(q, k, v, bias=None, mask=None, causal=False, soft_cap=None, kv_lengths=None):
    """(o, lse) in q's own arithmetic."""
    k, v = (jnp.repeat(x, N // K, 2) for x in (k, v))
    # XLA would take f32's products in tf32.
    product = partial(jnp.einsum, precision="highest")
    scores = product("btnh,bsnh->bnts", q, k).astype(jnp.promote_types(q.dtype, jnp.float32)) * H**-0.5
    scores = scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)
    scores = scores if bias is None else scores + bias
    keep = jnp.ones(scores.shape[-2:], bool)
    keep = jnp.tril(keep) if causal else keep
    keep = keep if mask is None else keep & mask
    keep = keep if kv_lengths is None else keep & (jnp.arange(k.shape[1]) < kv_lengths[:, None, None, None])
    scores = jnp.where(keep, scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, -1)
    return product("bnts,bsnh->btnh", jnp.exp(scores - lse[..., None]).astype(q.dtype), v), lse


def gradients(f, d_o, arrays):
    (o, lse), pull = jax.vjp(f, *arrays)
    return o, lse, *pull((d_o.astype(o.dtype), jnp.zeros_like(lse)))


def assert_no_worse(ours, naive, exact):
    """Each array at most twice as far from f64 as the same low precision computed plainly: the root mean square, and to
    twice that the largest error, which of two equally good roundings is often twice the other's."""
    for got, low, high in zip(ours, naive, exact):
        errors = [np.abs(np.asarray(x, np.float64) - np.asarray(high, np.float64)) for x in (got, low)]
        error, allowed = (np.sqrt(np.mean(x**2)) for x in errors)
        assert error <= 2 * allowed
        assert errors[0].max() <= 4 * errors[1].max()


def in_f64(f, d_o, arrays):
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        wide = [jnp.asarray(np.asarray(x, np.float64)) for x in (d_o, *arrays)]
        return [np.asarray(x) for x in gradients(f, wide[0], wide[1:])]


OPTIONS = {
    "none": {},
    "causal": {"causal": True},
    "soft cap": {"soft_cap": 3.0, "causal": True},
    "mask": {"mask": (np.random.default_rng(3).random((B, 1, T, S)) < 0.7)},
    "lengths": {"kv_lengths": np.array([100, S], np.int32)},
    "bias": {"bias": np.random.default_rng(4).standard_normal((1, N, T, S)).astype(np.float32)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_attention(options, dtype):
    arrays, d_o = qkv(dtype), random(B, T, N, H, seed=5, dtype=dtype)
    run = jax.jit(lambda d_o, *x: gradients(lambda *x: attention(*x, **options, return_lse=True), d_o, x))
    plain = jax.jit(lambda d_o, *x: gradients(lambda *x: reference(*x, **options), d_o, x))
    assert_no_worse(run(d_o, *arrays), plain(d_o, *arrays), in_f64(lambda *x: reference(*x, **options), d_o, arrays))


def test_what_no_kernel_runs_is_refused_before_it_runs():
    q, k, v = (random(1, 16, 1, 1024, seed=i) for i in range(3))
    for f in (attention, jax.grad(lambda *x: attention(*x).sum())):
        with pytest.raises(ValueError, match=r"^attention: .* head_dim 1024 \(q, k\) .* at most "):
            jax.jit(f).lower(q, k, v)


def test_the_gradient_of_lse():
    arrays = qkv()
    loss = lambda f: jax.jit(jax.grad(lambda *x: jnp.sum(jnp.cos(f(*x)[1])), (0, 1)))(*arrays)
    found, plain = loss(partial(attention, return_lse=True)), loss(reference)
    for got, expected in zip(found, plain):
        np.testing.assert_allclose(got.astype(jnp.float32), expected.astype(jnp.float32), rtol=0.1, atol=2e-2)


def test_dropout_draws_in_the_backward_what_it_drew():
    q, k, _ = qkv(t=64, s=64)
    v = jnp.broadcast_to(jnp.eye(64, H, dtype=jnp.bfloat16)[None, :, None], (B, 64, K, H))
    o, pull = jax.vjp(lambda v: attention(q, k, v, dropout=(0.5, 3)), v)
    d_v, = pull(jnp.ones_like(o))
    shown = np.asarray(o, np.float64).sum(1).reshape(B, K, N // K, H).sum(2)
    np.testing.assert_allclose(np.asarray(d_v, np.float64)[..., 0].transpose(0, 2, 1), shown, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 0, 0)])
def test_vmap(axes):
    arrays = [x if axis is None else jnp.stack([x, x * 0.5]) for x, axis in zip(qkv(), axes)]
    found = jax.jit(jax.vmap(partial(attention, causal=True), axes))(*arrays)
    for i in range(2):
        one = attention(*(x if axis is None else x[i] for x, axis in zip(arrays, axes)), causal=True)
        np.testing.assert_allclose(found[i].astype(jnp.float32), one.astype(jnp.float32), rtol=2e-2, atol=2e-2)


def test_scan_with_a_checkpoint_policy():
    x, w = random(B, T, N, H), 0.1 * random(4, H, H, seed=1)
    policy = jax.checkpoint_policies.save_only_these_names("heddle_out", "heddle_lse")

    def loss(attend, x, w):
        layer = jax.checkpoint(lambda x, w: (x + attend(x @ w, x, x), None), policy=policy)
        return jnp.sum(jax.lax.scan(layer, x, w)[0].astype(jnp.float32) ** 2)

    found, plain = (jax.jit(jax.grad(partial(loss, f), (0, 1)))(x, w) for f in (
        partial(attention, causal=True), partial(jax.nn.dot_product_attention, is_causal=True)))
    for got, expected in zip(found, plain):
        got, expected = (np.asarray(a, np.float64) for a in (got, expected))
        assert np.linalg.norm(got - expected) <= 0.05 * np.linalg.norm(expected)


def test_a_scan_runs_each_call_once():
    """XLA's dynamic-slice fusion would copy a call of which one result goes straight into a stack, and keep the call."""
    x, w = random(B, T, N, H), random(H, seed=1)
    loss = lambda attend, x, w: jnp.sum(jax.lax.scan(lambda x, _: (attend(x, w), None), x, None, length=3)[0] ** 2)
    calls = lambda f: jax.jit(jax.grad(partial(loss, f))).lower(x, w).compile().as_text().count('custom_call_target="heddle"')
    assert calls(lambda x, _: attention(x, x, x, causal=True)) == 2
    assert calls(rms_norm) == 2


CAPTURED = """
import glob, sys
import jax, jax.numpy as jnp, numpy as np
from heddle.jax import attention

x = [jax.random.normal(jax.random.key(i), (2, 300, 4, 64)).astype(jnp.bfloat16) for i in range(3)]
run = jax.jit(jax.grad(lambda *a: (attention(a[0] * 1.5, *a[1:], causal=True).astype(jnp.float32) ** 2).sum(), (0, 1, 2)))
first = run(*x)
for scale in (1, 0.5, 1):  # captured, replayed, and over other buffers
    found = run(*(scale * a for a in x))
for one, other in zip(first, found):
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
dump, = glob.glob(sys.argv[1] + "/*lambda*thunk_sequence_after_thunk_passes*")
captured = open(dump).read().split("kCommandBuffer", 1)[1]
assert captured.count("kCustomCall ") == 2, captured
"""


def test_calls_are_captured_into_a_cuda_graph(tmp_path):
    """In a process of its own, as XLA reads its flags once."""
    flags = f"--xla_gpu_graph_min_graph_size=1 --xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path),
                   "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    run = subprocess.run([sys.executable, "-c", CAPTURED, tmp_path], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_dot_product_attention():
    arrays = qkv()
    options = {"mask": OPTIONS["mask"]["mask"], "key_value_seq_lengths": np.array([0, S], np.int32)}
    found, expected = (f(*arrays, **options) for f in (dot_product_attention, jax.nn.dot_product_attention))
    np.testing.assert_allclose(found.astype(jnp.float32), expected.astype(jnp.float32), rtol=5e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_layer_norm(dtype):
    x, weight, bias = 2 + random(B, T, N, H, dtype=dtype), random(H, seed=1, dtype=dtype), random(H, seed=2, dtype=dtype)
    step = float(jnp.finfo(dtype).eps)

    def plain(x, weight, bias):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias

    pull = lambda f, *a: jax.vjp(f, *a)[1](jnp.ones(x.shape, a[0].dtype))
    wide = [jnp.asarray(a, jnp.float32) for a in (x, weight, bias)]
    found, expected = ((f(*a), *pull(f, *a)) for f, a in ((layer_norm, (x, weight, bias)), (plain, wide)))
    for got, want in zip(found, map(np.asarray, expected)):
        np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=8 * step, atol=16 * step * np.abs(want).max())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_rms_norm_and_rope(dtype):
    x, weight = random(B, T, N, H, dtype=dtype), random(H, seed=1, dtype=dtype)
    step = float(jnp.finfo(dtype).eps)

    def plain(x, weight):
        return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5) * weight

    pull = lambda f, *a: jax.vjp(f, *a)[1](jnp.ones(x.shape, a[0].dtype))
    wide = [np.asarray(a, np.float32) for a in (x, weight)]
    for got, expected in zip((rms_norm(x, weight), *pull(rms_norm, x, weight)), (plain(*wide), *pull(plain, *map(
            jnp.asarray, wide)))):
        np.testing.assert_allclose(np.asarray(got, np.float32), expected, rtol=8 * step, atol=16 * step * np.abs(expected).max())
    back, = pull(lambda y: rope(y), rope(x))
    assert np.isfinite(np.asarray(back, np.float32)).all()
    lengths = [np.linalg.norm(np.asarray(a, np.float64), axis=-1) for a in (rope(x), x)]
    np.testing.assert_allclose(*lengths, rtol=8 * step)
