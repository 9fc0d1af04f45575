"""heddle.jax.enable() on an NVIDIA GPU: unmodified programs, compiled by XLA with their attention fused."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import heddle.jax
import jax
import jax.numpy as jnp
import model
import numpy as np
import pytest
from heddle.jax import _internals, _live


@pytest.fixture(autouse=True)
def disabled_again():
    yield
    heddle.jax.disable()


def attend(q, k, v):
    """Causal attention as people write it; [batch, length, heads, depth]."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1]**-0.5
    visible = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def qkv(dtype=jnp.bfloat16, batch=2, length=256, heads=4, depth=64):
    generator = np.random.default_rng(0)
    return [jnp.asarray(generator.standard_normal((batch, length, heads, depth)), dtype) for _ in range(3)]


def loss(q, k, v):
    return (attend(q, k, v).astype(jnp.float32)**2).sum()


def calls(f, *args):
    return jax.jit(f).lower(*args).compile().as_text().count('custom_call_target="heddle"')


def error(found, truth):
    found, truth = (np.asarray(x, np.float64) for x in (found, truth))
    return np.linalg.norm(found - truth) / np.linalg.norm(truth)


def check(f, *args, fused_calls):
    """Fused results are at most twice as far from f64 as unfused ones, and disabling gives those back."""
    plain = jax.tree.leaves(jax.jit(f)(*args))
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        wide = [jnp.asarray(np.asarray(x, np.float64)) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in args]
        truth = [np.asarray(x) for x in jax.tree.leaves(jax.jit(f)(*wide))]
    with heddle.jax.enable():
        assert calls(f, *args) == fused_calls
        fused = jax.tree.leaves(jax.jit(f)(*args))
    assert calls(f, *args) == 0
    for one, other, exact in zip(plain, fused, truth, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        allowed = 2 * error(one, exact) + float(jnp.finfo(args[0].dtype).eps)
        assert error(other, exact) <= allowed


def test_forward():
    check(attend, *qkv(), fused_calls=1)


def test_gradient():
    check(jax.value_and_grad(loss, argnums=(0, 1, 2)), *qkv(), fused_calls=2)


def masked(change):
    """Attention whose scores [batch, heads, queries, keys] are changed before the softmax."""

    def program(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1]**-0.5
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(change(scores), axis=-1).astype(v.dtype), v)

    return program


def window(scores):
    distance = jnp.arange(scores.shape[-2])[:, None] - jnp.arange(scores.shape[-1])
    return jnp.where((distance >= 0) & (distance < 50), scores, -1e30)


def padded(q, k, v):
    """With lengths known only when the program runs."""
    lengths = jnp.where(q[:, 0, 0, 0] > 99, 256, 200)[:, None, None, None]
    return masked(lambda scores: jnp.where(jnp.arange(scores.shape[-1]) < lengths, scores, -jnp.inf))(q, k, v)


def grouped(q, k, v):
    """Two query heads use each key head."""
    k, v = (jnp.repeat(x[:, :, :2], 2, axis=2) for x in (k, v))
    return attend(q, k, v)


def late(q, k, v):
    """Divided by the sum after the weighted sum."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1]**-0.5
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    total = jnp.einsum("bhqk->bqh", weights)[..., None]
    return (jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v) / total).astype(v.dtype)


@pytest.mark.parametrize("program, dtype", [
    (attend, jnp.float16),
    (masked(lambda scores: 20 * jnp.tanh(scores / 20)), jnp.bfloat16),
    (padded, jnp.bfloat16),
    (masked(window), jnp.bfloat16),
    (grouped, jnp.bfloat16),
    (late, jnp.bfloat16),
    (partial(jax.nn.dot_product_attention, is_causal=True), jnp.bfloat16),
], ids=["f16", "soft cap", "padding", "window", "grouped heads", "late division", "jax.nn"])
def test_ways_to_write_it(program, dtype):
    check(jax.value_and_grad(lambda *x: (program(*x).astype(jnp.float32)**2).sum(), (0, 1, 2)), *qkv(dtype),
          fused_calls=2)


def test_results_in_a_layout_of_their_own():
    """XLA reads the layouts of a program from what the hook returns: nothing may come back permuted."""
    check(lambda q, k, v: (attend(q, k, v).transpose(3, 1, 0, 2), jnp.swapaxes(q, 1, 2)), *qkv(), fused_calls=1)


def test_scan_over_layers():
    def layers(q, k, v):
        return jax.lax.scan(lambda x, _: (attend(x, k, v), None), q, None, length=3)[0].astype(jnp.float32).sum()

    check(jax.grad(layers), *qkv(), fused_calls=2)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_training_step_of_a_gpt(checkpoint):
    config = model.Config(batch=2, sequence=256, layers=2, head_dim=64, hidden=256, vocabulary=128,
                          dtype="bfloat16", checkpoint=checkpoint)
    params = model.init(config, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (config.batch, config.sequence + 1), 0, config.vocabulary)
    step = partial(model.train_step, config)
    plain = jax.tree.leaves(jax.jit(step)(params, tokens))
    with heddle.jax.enable():
        assert calls(step, params, tokens) >= 2
        fused = jax.tree.leaves(jax.jit(step)(params, tokens))
    assert abs(float(plain[0]) - float(fused[0])) <= 0.02 * abs(float(plain[0]))
    for one, other in zip(plain, fused, strict=True):
        assert error(other, one) <= 0.1


def test_two_threads_at_once():
    programs = [partial(lambda n, q, k, v: n * attend(q, k, v), n) for n in range(1, 9)]
    with heddle.jax.enable(), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda f: calls(f, *qkv()), programs)) == [1] * 8


def test_functions_compiled_before_are_compiled_again():
    f = jax.jit(attend)
    f(*qkv())
    with heddle.jax.enable():
        seen = []
        original, _live.transform = _live.transform, lambda *a: seen.append(original(*a)) or seen[-1]
        try:
            f(*qkv())
        finally:
            _live.transform = original
    assert any(seen)


def test_idempotent_on_what_the_hook_delivers():
    delivered = []
    original, _live.transform = _live.transform, lambda *a: delivered.append(a[0]) or original(*a)
    try:
        with heddle.jax.enable():
            calls(jax.grad(loss), *qkv())
    finally:
        _live.transform = original
    changed = 0
    for serialized in delivered:
        fused = _live.transform(serialized, "cuda")
        changed += fused is not None
        if fused is not None:
            assert _live.transform(fused, "cuda") is None
    assert changed == 1


def test_the_compilation_cache_keeps_them_apart(tmp_path):
    settings = {"jax_compilation_cache_dir": str(tmp_path), "jax_persistent_cache_min_compile_time_secs": 0.0,
                "jax_persistent_cache_min_entry_size_bytes": 0}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    try:
        for _ in range(2):  # the second round is served from the cache
            assert calls(attend, *qkv()) == 0
            with heddle.jax.enable():
                assert calls(attend, *qkv()) == 1
            jax.clear_caches()
        assert any(tmp_path.iterdir())
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_fuse_on_a_gpu():
    fused = heddle.jax.fuse(jax.value_and_grad(loss, argnums=(0, 1, 2)))
    assert fused.lower(*qkv()).compile().as_text().count('custom_call_target="heddle"') == 2
    for one, other in zip(jax.tree.leaves(jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(*qkv())),
                          jax.tree.leaves(fused(*qkv())), strict=True):
        assert error(other, one) <= 0.02


def test_explain_asks_the_gpu():
    assert "attention calls: 2" in heddle.jax.explain(jax.grad(loss), *qkv())
    assert "cuda: " in heddle.jax.explain(loss, *qkv(depth=1024))


def test_hlo_transformations_are_there():
    assert _internals.hlo_transformations() is not None
