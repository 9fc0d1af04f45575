"""heddle.torch on an NVIDIA GPU: what its tests on the CPU cannot show: streams, several devices, CUDA graphs, CuPy's arrays.

tests/torch runs here too, with HEDDLE_TEST_DEVICE=cuda.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import heddle.torch

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def drawn(*shape, dtype=torch.bfloat16, device="cuda", grad=True):
    return torch.randn(shape, device=device).to(dtype).requires_grad_(grad)


def truth(q, k, v, is_causal=False, dtype=torch.float64):
    leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
    return torch.ops.aten._scaled_dot_product_attention_math(*leaves, None, 0.0, is_causal, None, scale=None,
                                                             enable_gqa=False)[0], leaves


def agree(found, exact, naive):
    """At most twice as far from f64 as torch's math in the same precision."""
    error, own = ((x.double() - exact).abs().max().item() for x in (found, naive))
    # Where a row sees one key, dS is the difference of two equal sums, which no two kernels take in the same order.
    allowed = 4 * torch.finfo(found.dtype).eps * exact.abs().max().item() + 16 * torch.finfo(torch.float32).eps
    assert error <= 2 * own + allowed, (error, own)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 77, 512])
def test_served_with_gradients(dtype, length):
    q, k, v = (drawn(2, 4, n, 64, dtype=dtype) for n in (length, 300, 300))
    before = heddle.torch.explain()
    with heddle.torch.enable():
        o = sdpa(q, k, v, is_causal=True)
    assert heddle.torch.explain() != before and o.is_cuda
    weights = torch.randn_like(o)
    exact, leaves = truth(q, k, v, True)
    naive, of_naive = truth(q, k, v, True, dtype)
    agree(o, exact, naive)
    for one, right, theirs in zip(torch.autograd.grad((o * weights).sum(), (q, k, v)),
                                  torch.autograd.grad((exact * weights).sum(), leaves),
                                  torch.autograd.grad((naive * weights).sum(), of_naive), strict=True):
        agree(one, right, theirs)


def test_work_is_queued_on_the_current_stream():
    """Inputs that another stream is still to write: only a call on that stream sees them."""
    stream, q = torch.cuda.Stream(), torch.zeros(1, 256, 8, 64, device="cuda", dtype=torch.bfloat16)
    values = torch.randn(q.shape, device="cuda").to(q.dtype)
    expected = heddle.torch.attention(values, values, values)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        q.copy_(values)
        o = heddle.torch.attention(q, q, q)
        y = heddle.torch.rms_norm(heddle.torch.rope(q), torch.ones(64, device="cuda"))
    stream.synchronize()
    assert torch.equal(o, expected)
    assert torch.equal(y, heddle.torch.rms_norm(heddle.torch.rope(values), torch.ones(64, device="cuda")))


def test_a_cuda_graph_captures_a_call():
    q, k, v = (drawn(2, 256, 4, 64, grad=False) for _ in range(3))
    heddle.torch.attention(q, k, v, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = heddle.torch.attention(q, k, v, causal=True)
    for x in (q, k, v):
        x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(o, heddle.torch.attention(q, k, v, causal=True))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_the_tensors_device_need_not_be_current():
    q = drawn(2, 256, 4, 64, device="cuda:1")
    o = heddle.torch.attention(q, q, q)
    o.sum().backward()
    assert o.device == q.grad.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
    host = q.detach().float().cpu()
    torch.testing.assert_close(o.float().cpu(), heddle.torch.attention(host, host, host), rtol=2e-2, atol=2e-2)
    with pytest.raises(ValueError, match="attention: k lies on cuda:0 and q on cuda:1, expected one device"):
        heddle.torch.attention(q, q.to("cuda:0"), q)


def test_dropout_is_seeded_without_a_wait():
    q = drawn(2, 4, 128, 64)
    with heddle.torch.enable():
        found = []
        for _ in range(2):
            torch.manual_seed(5)
            torch.cuda.set_sync_debug_mode("error")
            try:
                found.append(sdpa(q, q, q, dropout_p=0.2))
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(*found) and not torch.equal(found[0], sdpa(q, q, q, dropout_p=0.2))


def test_a_backward_is_the_first_of_its_thread():
    """The thread of torch's autograd has no context until something has called CUDA there: in a process of its own."""
    program = """
import torch
import heddle.torch
q, k, v, d_o = (torch.randn(2, 96, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
leaves = [x.requires_grad_() for x in (q, k, v)]
exact = [x.detach().double().requires_grad_() for x in leaves]
o = heddle.torch.attention(*leaves, causal=True)
found = torch.autograd.grad(o, leaves, d_o)
true = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in exact), is_causal=True)
for one, other in zip(found, torch.autograd.grad(true.transpose(1, 2), exact, d_o.double()), strict=True):
    torch.testing.assert_close(one.double(), other, rtol=0.05, atol=0.05)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "rope"])
def test_ops_agree_with_the_cpus(op):
    x = drawn(2, 33, 4, 64, dtype=torch.float32)
    host = x.detach().cpu().requires_grad_()
    weight = torch.rand(64)
    run = {"rms_norm": lambda x: heddle.torch.rms_norm(x, weight.to(x.device)),
           "layer_norm": lambda x: heddle.torch.layer_norm(x, weight.to(x.device), weight.to(x.device)),
           "rope": lambda x: heddle.torch.rope(x, positions=torch.arange(33, device=x.device) * 3)}[op]
    found, expected = run(x), run(host)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    (found * found.cos()).sum().backward()
    (expected * expected.cos()).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), host.grad, rtol=1e-4, atol=1e-4)


def test_arrays_of_cupy():
    cupy = pytest.importorskip("cupy")
    q = cupy.asarray(np.random.default_rng(0).standard_normal((2, 64, 4, 64), np.float32))
    o = heddle.attention(q, q, q, causal=True)
    assert isinstance(o, cupy.ndarray)
    host = cupy.asnumpy(q)
    np.testing.assert_allclose(cupy.asnumpy(o), heddle.attention(host, host, host, causal=True), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(cupy.asnumpy(heddle.rope(q)), heddle.rope(host), rtol=1e-4, atol=1e-4)
