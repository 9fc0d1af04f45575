"""The custom call "heddle" inside XLA on the CPU, through JAX's own FFI."""

import heddle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle import _plan
from heddle.jax import ffi

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}


@pytest.fixture(scope="session")
def library():
    return ffi.register()


def workspace_bytes(text):
    return _plan.workspace_bytes(text, "cpu")


def attention_graph(b, hq, hk, s, d, dtype, order="bhsd", every=1):
    """Causal attention with stats; tensors are BHSD or BSHD in memory. Of K and V every so many heads are read."""
    graph = heddle.Graph(io=dtype)

    def tensor(name, heads, every=1):
        head, row = (s * d, d) if order == "bhsd" else (d, heads * d)
        return graph.tensor(name, [b, heads, s, d], [every * heads * s * d, every * head, row, 1])

    ports = {"q": tensor("q", hq), "k": tensor("k", hk, every), "v": tensor("v", hk, every), "o": tensor("o", hq)}
    graph.node("sdpa", "attention", **ports, stats=graph.tensor("stats", dtype="f32"), attn_scale=d**-0.5, right_bound=0)
    return graph.text


def plain_attention(q, k, v, dtype):
    """[b, h, s, d] in the given arithmetic; returns output and log-sum-exp."""
    q, k, v = (np.asarray(x, dtype) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("bhid,bhjd->bhij", q, k) * dtype(q.shape[-1]) ** dtype(-0.5)
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    exponentials = np.exp(scores - top)
    total = exponentials.sum(-1, keepdims=True)
    return np.einsum("bhij,bhjd->bhid", exponentials / total, v), (top + np.log(total))


def call(text, results, workspace, *operands):
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    shapes.append(jax.ShapeDtypeStruct((workspace,), jnp.uint8))
    return jax.ffi.ffi_call("heddle", shapes)(*operands, graph=text)


def random(*shape, dtype, seed):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


@pytest.mark.parametrize("order", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_attention_inside_jit(library, dtype, order):
    b, hq, hk, s, d = 2, 4, 2, 77, 64
    text = attention_graph(b, hq, hk, s, d, dtype, order)
    q, k, v = (random(b, h, s, d, dtype=DTYPES[dtype], seed=i) for i, h in enumerate((hq, hk, hk)))
    to_memory = (lambda x: x) if order == "bhsd" else (lambda x: x.transpose(0, 2, 1, 3))

    @jax.jit
    def attend(q, k, v):
        shape = (b, hq, s, d) if order == "bhsd" else (b, s, hq, d)
        o, stats, _ = call(text, [(shape, DTYPES[dtype]), ((b, hq, s, 1), jnp.float32)],
                           workspace_bytes(text), *(to_memory(x) for x in (q, k, v)))
        return to_memory(o), stats

    for _ in range(2):  # the second call finds its plan
        o, stats = attend(q, k, v)
    truth, lse = plain_attention(q, k, v, np.float64)
    naive = jax.nn.dot_product_attention(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)), is_causal=True).transpose(0, 2, 1, 3)
    error = np.abs(np.asarray(o, np.float64) - truth).max()
    allowed = max(2 * np.abs(np.asarray(naive, np.float64) - truth).max(), 1e-6)
    assert error <= allowed
    np.testing.assert_allclose(stats, lse, rtol=1e-5, atol=1e-5)


def test_one_plan_serves_threads_at_once(library):
    from concurrent.futures import ThreadPoolExecutor

    text = attention_graph(1, 2, 2, 33, 32, "f32")
    size = workspace_bytes(text)
    attend = jax.jit(lambda q, k, v: call(text, [((1, 2, 33, 32), jnp.float32), ((1, 2, 33, 1), jnp.float32)], size, q, k, v)[0])

    def check(seed):
        q, k, v = (random(1, 2, 33, 32, dtype=jnp.float32, seed=3 * seed + i) for i in range(3))
        np.testing.assert_allclose(attend(q, k, v), plain_attention(q, k, v, np.float64)[0], rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check, range(64)))


def test_operand_as_a_strided_part_of_its_array(library):
    """K and V are every second head of what is passed."""
    text = attention_graph(1, 2, 2, 16, 32, "f32", every=2)
    q, k, v = (random(1, h, 16, 32, dtype=jnp.float32, seed=i) for i, h in enumerate((2, 4, 4)))
    results = [((1, 2, 16, 32), jnp.float32), ((1, 2, 16, 1), jnp.float32)]
    o = jax.jit(lambda *x: call(text, results, workspace_bytes(text), *x)[0])(q, k, v)
    np.testing.assert_allclose(o, plain_attention(q, k[:, ::2], v[:, ::2], np.float64)[0], rtol=1e-4, atol=1e-5)


def test_scan_over_layers(library):
    text = attention_graph(1, 2, 2, 16, 32, "f32")
    size = workspace_bytes(text)

    def layer(x, scale):
        o = call(text, [((1, 2, 16, 32), jnp.float32), ((1, 2, 16, 1), jnp.float32)], size, x, x * scale, x)[0]
        return o, None

    x = random(1, 2, 16, 32, dtype=jnp.float32, seed=0)
    fused = jax.jit(lambda x: jax.lax.scan(layer, x, jnp.arange(1.0, 4.0))[0])(x)
    plain = np.asarray(x, np.float64)
    for scale in (1.0, 2.0, 3.0):
        plain = plain_attention(plain, plain * scale, plain, np.float64)[0]
    np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-5)


def test_gradients_through_custom_vjp(library):
    """Forward and backward graphs with RoPE on Q and K, against JAX's own differentiation."""
    b, hq, hk, s, d = 2, 4, 2, 40, 32

    def begin(*names):
        """A graph with tensors of these names, and with rotated Q and K."""
        graph = heddle.Graph(io="f32", intermediate="f32")
        tensors = {name: graph.tensor(name, [b, hk if name in ("k", "v") else hq, s, d]) for name in names}
        if "o" in names:
            tensors["stats"] = graph.tensor("stats", [b, hq, s, 1])
        freqs = graph.tensor("freqs", [s, 1, 1, d])
        rotated = {x: graph.tensor(f"{x} rotated", [b, h, s, d], virtual=True) for x, h in (("q", hq), ("k", hk))}
        for x, y in rotated.items():
            graph.node("rope", f"rotate {x}", x=tensors[x], freqs=freqs, y=y)
        return graph, tensors | rotated, freqs

    attributes = {"attn_scale": d**-0.5, "right_bound": 0}
    graph, tensors, _ = begin("q", "k", "v")
    graph.node("sdpa", **tensors, o=graph.tensor("o"), stats=graph.tensor("stats"), **attributes)
    forward = graph.text
    graph, tensors, freqs = begin("q", "k", "v", "o", "d_o")
    turned = {x: graph.tensor(f"d_{x} rotated", [b, h, s, d], virtual=True) for x, h in (("q", hq), ("k", hk))}
    results = {x: graph.tensor(f"d_{x}", [b, h, s, d]) for x, h in (("q", hq), ("k", hk), ("v", hk))}
    graph.node("sdpa_backward", **tensors, d_q=turned["q"], d_k=turned["k"], d_v=results["v"], **attributes)
    for x, y in turned.items():
        graph.node("rope_backward", f"rotate d_{x} back", x=y, freqs=freqs, y=results[x])
    backward = graph.text
    sizes = workspace_bytes(forward), workspace_bytes(backward)
    f32 = jnp.float32
    angles = jnp.asarray(np.outer(np.arange(s), 10000.0 ** (-np.arange(d // 2) * 2 / d)), f32)
    table = jnp.pad(angles, ((0, 0), (0, d // 2))).reshape(s, 1, 1, d)

    @jax.custom_vjp
    def fused(q, k, v):
        return save(q, k, v)[0]

    def save(q, k, v):
        o, stats, _ = call(forward, [((b, hq, s, d), f32), ((b, hq, s, 1), f32)], sizes[0], q, k, v, table)
        return o, (q, k, v, o, stats)

    def differentiate(saved, d_o):
        q, k, v, o, stats = saved
        shapes = [(x.shape, f32) for x in (q, k, v)]
        return tuple(call(backward, shapes, sizes[1], q, k, v, o, d_o, stats, table)[:3])

    fused.defvjp(save, differentiate)

    def plain(q, k, v):
        def rope(x):
            low, high = jnp.split(x, 2, -1)
            return jnp.concatenate([low * jnp.cos(angles) - high * jnp.sin(angles),
                                    high * jnp.cos(angles) + low * jnp.sin(angles)], -1)
        q, k = rope(q), jnp.repeat(rope(k), hq // hk, 1)
        scores = jnp.einsum("bhid,bhjd->bhij", q, k, precision="highest") * d**-0.5
        scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -jnp.inf)
        return jnp.einsum("bhij,bhjd->bhid", jax.nn.softmax(scores), jnp.repeat(v, hq // hk, 1), precision="highest")

    operands = [random(b, h, s, d, dtype=f32, seed=i) for i, h in enumerate((hq, hk, hk))]
    weight = random(b, hq, s, d, dtype=f32, seed=9)
    got = jax.jit(jax.value_and_grad(lambda *x: jnp.sum(fused(*x) * weight), argnums=(0, 1, 2)))(*operands)
    expected = jax.jit(jax.value_and_grad(lambda *x: jnp.sum(plain(*x) * weight), argnums=(0, 1, 2)))(*operands)
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(expected)):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def attempt(text, results, workspace, *operands):
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(jax.jit(lambda *x: call(text, results, workspace, *x))(*operands))
    return str(caught.value)


class TestRefusals:
    """Wrong programs are refused in words before anything is written."""

    b, hq, hk, s, d = 1, 2, 2, 16, 32
    results = [((1, 2, 16, 32), jnp.float32), ((1, 2, 16, 1), jnp.float32)]
    plenty = 1 << 24

    def operands(self, dtype=jnp.float32, shape=(1, 2, 16, 32)):
        return [random(*shape, dtype=dtype, seed=i) for i in range(3)]

    @property
    def text(self):
        return attention_graph(self.b, self.hq, self.hk, self.s, self.d, "f32")

    def changed(self, part, to):
        assert part in self.text
        return self.text.replace(part, to)

    def test_malformed_text(self, library):
        message = attempt("{\"heddle_graph\": 1,", self.results, self.plenty, *self.operands())
        assert "INVALID_ARGUMENT" in message and "line 1, column 20" in message

    def test_invalid_graph(self, library):
        text = self.changed('"right_bound":0', '"right_bound":-1')
        assert "Right bound needs to be larger than or equal to zero" in attempt(text, self.results, self.plenty, *self.operands())

    def test_unsupported_graph(self, library):
        text = self.changed('"io_dtype":"f32"', '"io_dtype":"f64"')
        assert "No execution plans support the graph. cpu:" in attempt(text, self.results, self.plenty, *self.operands())

    def test_operand_count(self, library):
        assert "has 2 operands, expected 3" in attempt(self.text, self.results, self.plenty, *self.operands()[:2])

    def test_result_count(self, library):
        assert "has 2 results, expected 3" in attempt(self.text, self.results[:1], self.plenty, *self.operands())

    def test_operand_type(self, library):
        message = attempt(self.text, self.results, self.plenty, *self.operands(jnp.bfloat16))
        assert "Operand 0 of the custom call has data type bf16, expected f32 for the tensor 'q' (uid 1)" in message

    def test_operand_elements(self, library):
        message = attempt(self.text, self.results, self.plenty, *self.operands(shape=(1, 2, 15, 32)))
        assert "Operand 0 of the custom call has 960 elements, expected 1024 or more" in message

    def test_result_elements(self, library):
        for d, count in ((31, 992), (33, 1056)):
            results = [((1, 2, 16, d), jnp.float32), self.results[1]]
            message = attempt(self.text, results, self.plenty, *self.operands())
            assert f"Result 0 of the custom call has {count} elements, expected 1024 for" in message

    def test_workspace(self, library):
        needed = workspace_bytes(self.text)
        assert needed > 0
        message = attempt(self.text, self.results, needed - 1, *self.operands())
        assert f"workspace has {needed - 1} bytes, but its graph needs {needed}" in message

    def test_missing_attribute(self, library):
        shapes = [jax.ShapeDtypeStruct(s, t) for s, t in self.results] + [jax.ShapeDtypeStruct((self.plenty,), jnp.uint8)]
        with pytest.raises(jax.errors.JaxRuntimeError, match="no attribute 'graph'"):
            jax.block_until_ready(jax.jit(lambda *x: jax.ffi.ffi_call("heddle", shapes)(*x))(*self.operands()))

    def test_attribute_of_another_type(self, library):
        shapes = [jax.ShapeDtypeStruct(s, t) for s, t in self.results] + [jax.ShapeDtypeStruct((self.plenty,), jnp.uint8)]
        with pytest.raises(jax.errors.JaxRuntimeError, match="'graph' is not a string"):
            jax.block_until_ready(jax.jit(lambda *x: jax.ffi.ffi_call("heddle", shapes)(*x, graph=np.int32(1)))(*self.operands()))


@pytest.mark.parametrize("handler, traits", [("heddle_xla_ffi_handler", 0), ("heddle_xla_ffi_handler_cuda", 1)])
@pytest.mark.parametrize("host, reported", [(None, 1), (1, 1), (3, 3), (4, 4), (9, 4)])
def test_what_a_handler_says_of_itself(library, handler, traits, host, reported):
    """Its FFI version, at most its host's, and that a GPU's may be captured into a CUDA graph; asked as a host asks."""
    from ctypes import POINTER, Structure, byref, c_int32, c_size_t, c_uint32, c_void_p, cast, pointer, sizeof

    class Version(Structure):
        _fields_ = [("size", c_size_t), ("extension", c_void_p), ("major", c_int32), ("minor", c_int32)]

    class Metadata(Structure):
        _fields_ = [("size", c_size_t), ("version", Version), ("traits", c_uint32)]

    class MetadataExtension(Structure):
        _fields_ = [("size", c_size_t), ("type", c_int32), ("next", c_void_p), ("metadata", POINTER(Metadata))]

    class Api(Structure):
        _fields_ = [("size", c_size_t), ("extension", c_void_p), ("version", Version)]

    class Frame(Structure):
        _fields_ = [("size", c_size_t), ("extension", POINTER(MetadataExtension)), ("api", c_void_p),
                    ("rest", c_void_p * 18)]

    assert sizeof(Frame) == 168
    metadata = Metadata(size=sizeof(Metadata))
    extension = MetadataExtension(size=sizeof(MetadataExtension), type=1, metadata=pointer(metadata))
    api = Api(size=sizeof(Api), version=Version(minor=host or 0))
    frame = Frame(size=sizeof(Frame), extension=pointer(extension), api=None if host is None else cast(byref(api), c_void_p))
    function = getattr(library, handler)
    function.restype = c_void_p
    assert function(byref(frame)) is None
    assert (metadata.version.major, metadata.version.minor, metadata.traits) == (0, reported, traits)
