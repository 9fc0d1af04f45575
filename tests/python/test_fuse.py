"""heddle.jax.fuse and heddle.jax.explain on unmodified functions, on the CPU."""

import functools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import heddle.jax
import jax
import jax.numpy as jnp
import model
import numpy as np
import pytest

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64

KEY = jax.random.key(0)


def random(*shape, dtype=jnp.float32, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def attend(q, k, v):
    """Causal attention as people write it; [batch, length, heads, depth]."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1]**-0.5
    visible = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def qkv(batch=2, length=48, heads=2, depth=32):
    return [random(batch, length, heads, depth, seed=i) for i in range(3)]


def calls(f, *args, **kwargs):
    """How many fused calls the lowered program has."""
    return f.lower(*args, **kwargs).as_text().count("stablehlo.custom_call @heddle")


def close(found, expected):
    """What cancels (the gradient of a row with one key) is left of as much as the array's largest is rounded by."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(1, np.abs(b).max(initial=0))),
                 found, expected)


def test_forward():
    fused = heddle.jax.fuse(attend)
    assert calls(fused, *qkv()) == 1
    close(fused(*qkv()), attend(*qkv()))


def test_gradient_inside():
    loss = lambda *x: (attend(*x)**2).sum()
    fused = heddle.jax.fuse(jax.value_and_grad(loss, argnums=(0, 1, 2)))
    assert calls(fused, *qkv()) == 2
    close(fused(*qkv()), jax.value_and_grad(loss, argnums=(0, 1, 2))(*qkv()))


@pytest.mark.parametrize("angles", ["cosines and sines", "powers"])
def test_rotation_of_complex_numbers(angles):
    """Rotary embedding as a product of complex numbers goes into the calls, forward and backward."""

    def turned(x):
        angle = (jnp.arange(x.shape[1])[:, None] * 100.0**(-jnp.arange(x.shape[-1] // 2) / 16))[None, :, None]
        turn = jnp.exp(1j * angle) if angles == "powers" else jax.lax.complex(jnp.cos(angle), jnp.sin(angle))
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        y = jax.lax.complex(pairs[..., 0], pairs[..., 1]) * turn
        return jnp.stack([y.real, y.imag], axis=-1).reshape(x.shape)

    step = jax.value_and_grad(lambda q, k, v: (attend(turned(q), turned(k), v)**2).sum(), argnums=(0, 1, 2))
    text = heddle.jax.explain(step, *qkv())
    assert text.count("dot, RoPE") == 2 and "outside" not in text
    close(heddle.jax.fuse(step)(*qkv()), jax.jit(step)(*qkv()))


def squared(f):
    return lambda *x: (f(*x)**2).sum()


def test_gradient_outside():
    fused = jax.jit(jax.grad(squared(heddle.jax.fuse(attend)), (0, 1, 2)))
    assert calls(fused, *qkv()) == 3  # the forward whose result is squared, and once more beside the backward
    close(fused(*qkv()), jax.grad(squared(attend), (0, 1, 2))(*qkv()))
    alone = jax.jit(jax.grad(heddle.jax.fuse(squared(attend)), (0, 1, 2)))
    assert alone.lower(*qkv()).compile().as_text().count('custom_call_target="heddle"') == 2


def test_gradients_of_some_arguments_and_results():
    """Integers have none, and what is not differentiated by costs none."""

    def f(count, q, k, v):
        return count + 1, attend(q, k, v) * count, {"k": k[0]}

    def loss(fused, q, k, v):
        count, o, more = fused(2, q, k, v)
        return (o**2).sum() * count + (more["k"]**3).sum()

    for wrt in (0, (1, 2)):
        found = jax.grad(functools.partial(loss, heddle.jax.fuse(f)), wrt)(*qkv())
        close(found, jax.grad(functools.partial(loss, f), wrt)(*qkv()))


def test_gradient_outside_under_transformations():
    fused, x = heddle.jax.fuse(attend), [jnp.stack([a, a / 2]) for a in qkv()]
    for axes in ((0, 0, 0), (0, None, None), (None, 0, 0)):
        arrays = [a if axis == 0 else a[0] for a, axis in zip(x, axes)]
        gradient = lambda f: jax.jit(jax.vmap(jax.grad(squared(f), (0, 1, 2)), axes))(*arrays)
        close(gradient(fused), gradient(attend))
    layers = lambda f: lambda q, k, v: jax.lax.scan(lambda h, _: (jax.checkpoint(f)(h, k, v), None), q, None, length=3)[0]
    close(jax.grad(squared(layers(fused)), (0, 1))(*qkv()), jax.grad(squared(layers(attend)), (0, 1))(*qkv()))
    given_twice = lambda f: jax.grad(lambda a: squared(f)(a, a, a))(qkv()[0])
    close(given_twice(fused), given_twice(attend))


def test_forward_mode_and_second_derivatives():
    fused, x = heddle.jax.fuse(attend), qkv(1, 6, 1, 8)
    close(jax.jvp(fused, x, x[::-1]), jax.jvp(attend, x, x[::-1]))
    twice = lambda f: jax.hessian(squared(f), 1)(*x)
    close(twice(fused), twice(attend))
    over = lambda f: jax.grad(lambda k: (jax.grad(squared(f), 1)(x[0], k, x[2])**2).sum())(x[1])
    close(over(fused), over(attend))


def test_training_step_of_a_gpt():
    """Pytrees in and out, a scan over layers, remat; the same loss and parameters."""
    config = model.Config(batch=2, sequence=64, layers=2, head_dim=32, hidden=64, vocabulary=64, checkpoint=True)
    params = model.init(config, KEY)
    tokens = jax.random.randint(KEY, (config.batch, config.sequence + 1), 0, config.vocabulary)
    step = functools.partial(model.train_step, config)
    fused = heddle.jax.fuse(step)
    assert calls(fused, params, tokens) >= 2
    expected, found = jax.jit(step)(params, tokens), fused(params, tokens)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * float(jnp.abs(b).max())),
                 found, expected)


def test_static_arguments_and_keywords():
    def f(q, k, v, *, scale, heads_first):
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale, axis=-1)
        out = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return out.transpose(0, 2, 1, 3) if heads_first else out

    fused = heddle.jax.fuse(f, static_argnames=("scale", "heads_first"))
    assert calls(fused, *qkv(), scale=0.3, heads_first=True) == 1
    for heads_first in (True, False):
        close(fused(*qkv(), scale=0.3, heads_first=heads_first), f(*qkv(), scale=0.3, heads_first=heads_first))
    positional = heddle.jax.fuse(lambda n, q, k, v: n * attend(q, k, v), static_argnums=0)
    close(positional(3, *qkv()), 3 * attend(*qkv()))


def test_donation():
    fused = heddle.jax.fuse(lambda x, k, v: x + attend(x, k, v), donate_argnums=0)
    q, k, v = qkv()
    expected = q + attend(q, k, v)
    close(fused(q, k, v), expected)
    assert q.is_deleted()


def test_compiled_once_for_each_set_of_shapes():
    traces = []

    def f(q, k, v):
        traces.append(q.shape)
        return attend(q, k, v)

    fused = heddle.jax.fuse(f)
    for length in (16, 24, 16, 24):
        fused(*qkv(length=length))
    assert traces == [(2, 16, 2, 32), (2, 24, 2, 32)]


def test_unused_arguments_constants_and_integers():
    table = random(48, 32, seed=9)

    def f(q, k, v, unused, count):
        return attend(q + table[:, None], k, v), count + 1, table

    fused = heddle.jax.fuse(f)
    arguments = (*qkv(), jnp.zeros((0, 3)), jnp.int32(4))
    assert calls(fused, *arguments) == 1
    close(fused(*arguments), f(*arguments))


@pytest.mark.parametrize("number", [jnp.float32(-2.4e38), jnp.full((1, 1), -2.4e38), np.float32(-2.4e38)], ids=str)
def test_numbers_that_a_function_closes_over_are_known(number):
    """Given as an argument, the fill of hidden scores could be any score."""
    def f(q, k, v):
        scores = jnp.where(jnp.tril(jnp.ones((48, 48), bool)), jnp.einsum("bqhd,bkhd->bhqk", q, k), number)
        return (jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)**2).sum()

    gradients = jax.grad(f, argnums=(0, 1, 2))
    fused = heddle.jax.fuse(gradients)
    assert calls(fused, *qkv()) == 2
    close(fused(*qkv()), gradients(*qkv()))
    assert "attention calls: 2" in heddle.jax.explain(gradients, *qkv())
    outside = jax.jit(jax.grad(heddle.jax.fuse(f), argnums=(0, 1, 2)))
    assert calls(outside, *qkv()) == 2
    close(outside(*qkv()), gradients(*qkv()))


def test_random_keys_go_in_and_out():
    def f(key, q, k, v):
        next_key, use = jax.random.split(key)
        return next_key, attend(q + jax.random.normal(use, q.shape), k, v)

    fused = heddle.jax.fuse(f)
    (key, out), (expected_key, expected) = fused(KEY, *qkv()), f(KEY, *qkv())
    assert (jax.random.key_data(key) == jax.random.key_data(expected_key)).all()
    close(out, expected)


class TestComposes:
    def test_inside_jit(self):
        fused = heddle.jax.fuse(attend)
        f = jax.jit(lambda q, k, v: 2 * fused(q, k, v) + fused(k, q, v))
        assert calls(f, *qkv()) == 1  # one function, called twice
        close(f(*qkv()), 2 * attend(*qkv()) + attend(qkv()[1], qkv()[0], qkv()[2]))

    def test_inside_scan(self):
        fused = heddle.jax.fuse(attend)
        run = lambda f: lambda q, k, v: jax.lax.scan(lambda q, _: (f(q, k, v), None), q, None, length=3)[0]
        assert calls(jax.jit(run(fused)), *qkv()) == 1
        close(jax.jit(run(fused))(*qkv()), run(attend)(*qkv()))

    def test_under_vmap(self):
        q, k, v = (jnp.stack([x, 2 * x]) for x in qkv())
        shared = k[0]
        mapped = jax.vmap(heddle.jax.fuse(attend), in_axes=(0, None, 1), out_axes=1)
        arguments = (q, shared, v.swapaxes(0, 1))
        expected = jax.vmap(attend, in_axes=(0, None, 1), out_axes=1)(*arguments)
        close(mapped(*arguments), expected)

    def test_over_a_closed_over_tracer(self):
        f = jax.jit(lambda q, k, v, bias: heddle.jax.fuse(lambda q: attend(q + bias, k, v))(q))
        q, k, v = qkv()
        close(f(q, k, v, 0.25), attend(q + 0.25, k, v))

    def test_ahead_of_time(self):
        compiled = heddle.jax.fuse(attend).lower(*qkv()).compile()
        close(compiled(*qkv()), attend(*qkv()))

    def test_exported(self):
        from jax import export

        allowed = [export.DisabledSafetyCheck.custom_call("heddle")]
        exported = export.export(heddle.jax.fuse(attend), disabled_checks=allowed)(*qkv())
        close(exported.call(*qkv()), attend(*qkv()))

    def test_twice(self):
        close(heddle.jax.fuse(heddle.jax.fuse(attend))(*qkv()), attend(*qkv()))


def test_two_threads_compile_at_once():
    """Programs that differ, by fuse and with an op of Heddle's, and each gives what it gives alone."""
    def program(n):
        fused = heddle.jax.fuse(lambda q, k, v: n * attend(q, k, v))
        return jax.jit(lambda q, k, v: fused(q, k, v) + heddle.jax.attention(q, k, v, causal=True, scale=n))

    with ThreadPoolExecutor(2) as pool:
        compiled = list(pool.map(lambda n: program(n).lower(*qkv()).compile(), range(1, 7)))
        together = list(pool.map(lambda one: one(*qkv()), compiled))
    for n, (one, found) in enumerate(zip(compiled, together), 1):
        assert one.as_text().count('custom_call_target="heddle"') == 2
        close(found, n * attend(*qkv()) + heddle.jax.attention(*qkv(), causal=True, scale=n))


def test_nothing_to_fuse():
    f = lambda x: jnp.exp(x).sum()
    fused = heddle.jax.fuse(f)
    assert calls(fused, jnp.ones(4)) == 0
    close(fused(jnp.ones(4)), f(jnp.ones(4)))


def test_nothing_to_fuse_beside_ops_of_heddle():
    """Their lowering asks for the devices, and so has a program's that holds them."""
    q, weight = qkv(length=8)[0], random(32, seed=5)
    attention = lambda q: heddle.jax.attention(q, q, q)
    both = lambda q: heddle.jax.rms_norm(heddle.jax.rope(q), weight)
    for f in (attention, both, lambda q: both(attention(both(q)))):
        for g in (f, jax.grad(lambda q: (f(q)**2).sum())):
            close(heddle.jax.fuse(g)(q), g(q))
        outside = lambda f: jax.grad(lambda q: (f(q)**2).sum())
        close(outside(heddle.jax.fuse(f))(q), outside(f)(q))
        close(jax.vmap(heddle.jax.fuse(f))(q[None]), f(q)[None])


def test_side_effects_run_as_written():
    seen = []

    def f(q, k, v):
        out = attend(q, k, v)
        jax.debug.callback(seen.append, out[0, 0, 0, 0])
        return out

    with pytest.warns(UserWarning, match="side effects"):
        close(heddle.jax.fuse(f)(*qkv()), attend(*qkv()))
    jax.effects_barrier()
    assert len(seen) == 1


def test_python_callbacks_run_as_written():
    def f(q, k, v):
        halved = jax.pure_callback(lambda x: np.asarray(x) / 2, jax.ShapeDtypeStruct(q.shape, q.dtype), q)
        return attend(halved, k, v)

    q, k, v = qkv()
    with pytest.warns(UserWarning, match="calls back into Python"):
        close(heddle.jax.fuse(f)(q, k, v), attend(q / 2, k, v))


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="int cannot be called"):
        heddle.jax.fuse(3)


def test_symbolic_dims_are_exported_as_written(caplog):
    from heddle.jax import _faults
    from jax import export

    _faults.forget()
    (batch,) = export.symbolic_shape("batch")
    specs = [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in qkv()]
    exported = export.export(heddle.jax.fuse(attend))(*specs)
    assert "compiled as written: its arguments have symbolic dims (batch)" in caplog.text
    for size in (1, 3):
        close(exported.call(*qkv(batch=size)), attend(*qkv(batch=size)))


PARTITIONED = '''
import heddle.jax, inspect, jax, jax.numpy as jnp, warnings
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np
from test_fuse import attend, qkv, close, calls
mesh = Mesh(np.array(jax.devices()), ("data",))
q, k, v = (jax.device_put(x, NamedSharding(mesh, P("data"))) for x in qkv(batch=4))
fused = heddle.jax.fuse(attend)
try:
    fused(q, k, v)
except NotImplementedError as error:
    assert "jax.shard_map" in str(error), error
else:
    raise SystemExit("a partitioned program was accepted")
shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map
specs = {"mesh": mesh, "in_specs": P("data"), "out_specs": P("data")}
if "check_vma" in inspect.signature(shard_map).parameters:
    try:
        jax.jit(shard_map(fused, **specs))(q, k, v)
    except NotImplementedError as error:
        assert "check_vma=False" in str(error), error
    else:
        raise SystemExit("varying axes were accepted")
    specs["check_vma"] = False
else:
    specs["check_rep"] = False
for whole in (heddle.jax.fuse(shard_map(attend, **specs)), heddle.jax.fuse(jax.jit(shard_map(attend, **specs)))):
    try:
        whole(q, k, v)
    except NotImplementedError as error:
        assert "put fuse inside, jax.shard_map(heddle.jax.fuse(f)" in str(error), error
    else:
        raise SystemExit("a program that is cut over a mesh was accepted")
local = jax.jit(shard_map(fused, **specs))
assert calls(local, q, k, v) == 1
close(local(q, k, v), attend(q, k, v))
assert "all-gather" not in local.lower(q, k, v).compile().as_text()
def turned(x):
    return jax.lax.ppermute(x, "data", [(0, 1), (1, 0)])
for name, exchange in [("psum", lambda x: jax.lax.psum(x, "data")), ("ppermute", turned),
                       ("ppermute", lambda x: jax.lax.map(turned, x)), ("axis_index", lambda x: x + jax.lax.axis_index("data"))]:
    def program(q, k, v):
        return exchange(attend(q, k, v))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = jax.jit(shard_map(heddle.jax.fuse(program), **specs))(q, k, v)
    assert len(told) == 1 and f"a collective, {name} over the mesh axis 'data'; it runs as written" in str(told[0].message), told
    close(result, jax.jit(shard_map(program, **specs))(q, k, v))
'''


def test_several_devices():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu",
                   "PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run([sys.executable, "-c", PARTITIONED], env=environment, capture_output=True, text=True,
                         timeout=300)
    assert run.returncode == 0, run.stderr


class TestExplain:
    def test_text(self):
        text = heddle.jax.explain(jax.grad(lambda *x: (attend(*x)**2).sum()), *qkv())
        assert "attention calls: 2" in text
        assert "backward" in text
        assert "causal" in text

    def test_why_not(self):
        def returns_weights(q, k, v):
            weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
            return weights, jnp.einsum("bhqk,bkhd->bqhd", weights, v)

        text = heddle.jax.explain(returns_weights, *qkv())
        assert "needed elsewhere" in text and f"test_fuse.py:{returns_weights.__code__.co_firstlineno + 1}" in text

    def test_what_stands_between_the_product_and_the_scores_is_said(self):
        def attention_of(change):
            def attend(q, k, v, *more):
                weights = jax.nn.softmax(change(jnp.einsum("bqhd,bkhd->bhqk", q, k), *more), axis=-1)
                return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

            return attend

        clipped = heddle.jax.explain(attention_of(lambda s: jnp.clip(s, -5, 5)), *qkv())
        assert "goes into the scores by" in clipped and "cap * tanh(score / cap)" in clipped
        biased = jax.vmap(attention_of(lambda s, b: s + b), (None, None, None, 0))
        of_biases = " ".join(heddle.jax.explain(biased, *qkv(), random(3, 2, 48, 48)).split())
        assert "serves several rows of scores" in of_biases and "not over biases or masks alone" in of_biases

    def test_a_mask_that_is_kept_is_said(self):
        def dropped(q, k, v, kept):
            weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
            return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(kept, weights / 0.45, 0), v)

        assert "mask kept: 2.222x" in heddle.jax.explain(dropped, *qkv(), jnp.ones((2, 2, 48, 48), bool))

    def test_f64_is_fused_where_the_engine_takes_it(self):
        with enable_x64(True):
            text = heddle.jax.explain(attend, *(jax.ShapeDtypeStruct((2, 16, 2, 8), jnp.float64) for _ in "qkv"))
        if jax.default_backend() == "cpu":
            assert "attention calls: 1, places left alone: 0" in text
        else:
            assert "q is f64, expected bf16, f16, f32" in " ".join(text.split())

    def test_shapes_are_enough_and_jitted_functions_too(self):
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in qkv()]
        assert heddle.jax.explain(attend, *specs) == heddle.jax.explain(jax.jit(attend), *specs)

    def test_what_fuse_gave_is_explained_as_the_function_it_was_given(self):
        assert heddle.jax.explain(heddle.jax.fuse(attend), *qkv()) == heddle.jax.explain(attend, *qkv())

        def repeated(q, k, v, times):
            for _ in range(times):
                q = attend(q, k, v)
            return q

        fused = heddle.jax.fuse(repeated, static_argnums=3)
        assert "attention calls: 2" in heddle.jax.explain(fused, *qkv(), 2)

    def test_calls_that_are_there_already_are_counted(self):
        text = heddle.jax.explain(lambda *x: 2 * heddle.jax.fuse(attend)(*x), *qkv())
        assert "Calls of Heddle that are in the program already, by fuse or by an op of heddle.jax: 1." in text
        assert "already" not in heddle.jax.explain(attend, *qkv())

    def test_picture(self, tmp_path):
        heddle.jax.explain(attend, *qkv(), picture=tmp_path / "attention.svg")
        assert (tmp_path / "attention.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")

    def test_a_picture_of_an_unknown_kind_is_refused(self, tmp_path):
        with pytest.raises(RuntimeError, match="attention.xyz"):
            heddle.jax.explain(attend, *qkv(), picture=tmp_path / "attention.xyz")
