"""heddle.torch.enable(): torch's scaled_dot_product_attention in programs that know nothing of Heddle, held against torch's own
math in f64."""

import re
from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa  # bound before anything is enabled

import heddle.torch

B, N, T, S, D, DV = 2, 4, 7, 9, 16, 8
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def counts():
    """How many calls were served and how many left so far."""
    served, left = re.match(r"\S+: (\d+) served, (\d+) left", heddle.torch.explain()).groups()
    return int(served), int(left)


@pytest.fixture
def served():
    """With Heddle enabled, a check that all calls of a test were served."""
    before = counts()
    with heddle.torch.enable():
        yield
    after = counts()
    # The GPU's engine says what it does not run, and torch has that.
    assert (after[0] > before[0] and after[1] == before[1]) or (ON_GPU and after != before), heddle.torch.explain()


def drawn(*shape, dtype=torch.float32, grad=True):
    return torch.randn(shape).to(dtype).requires_grad_(grad)


def truth(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, dtype=torch.float64,
          dropout_mask=None):
    """torch's own math, in f64, of operands that are leaves of their own: the result and the leaves."""
    if attn_mask is not None and attn_mask.dtype is torch.bool:  # as torch does before its math
        attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
    leaves = [x.detach().to(dtype).requires_grad_(x.requires_grad) if x is not None and x.is_floating_point() else x
              for x in (q, k, v, attn_mask)]
    o = torch.ops.aten._scaled_dot_product_attention_math(*leaves, dropout_p, is_causal, dropout_mask, scale=scale,
                                                          enable_gqa=enable_gqa)[0]
    return o, leaves


ON_GPU = torch.get_default_device().type == "cuda"
# What a gradient is the sum of, on a GPU: where it is 0, its kernels add up other terms than torch's math.
TERMS = 4 if ON_GPU else 1e-3
# Of one dO the sum of a gradient that is 0 may come out exact by chance.
DRAWS = 8


def agree(q, k, v, attn_mask=None, **options):
    """O and every gradient are at most twice as far from f64 as torch's math in the same precision is, beside a few roundings
    of numbers of their size."""
    o = sdpa(q, k, v, attn_mask, **options)
    exact, of_exact = truth(q, k, v, attn_mask, **options)
    naive, of_naive = truth(q, k, v, attn_mask, **options, dtype=q.dtype)
    assert o.dtype == q.dtype and o.shape == exact.shape and (o.is_contiguous() or ON_GPU)  # torch's own is not
    operands = [x for x in (q, k, v, attn_mask) if x is not None and x.requires_grad]
    assert o.requires_grad == bool(operands)
    within_twice_naive([([o], [exact], [naive])], q.dtype)
    if operands:
        of_exact, of_naive = ([x for x in leaves if x is not None and x.requires_grad] for leaves in (of_exact, of_naive))
        within_twice_naive([[gradients(*x, weights) for x in ((o, operands), (exact, of_exact), (naive, of_naive))]
                            for weights in (torch.randn(o.shape).to(o.dtype) for _ in range(DRAWS))], q.dtype)


def gradients(o, operands, weights):
    return torch.autograd.grad((o * weights).sum(), operands, retain_graph=True)


def within_twice_naive(draws, dtype):
    """Of several draws of (found, exact, naive), each a list: the largest errors."""
    for draws_of_one in zip(*(zip(*draw, strict=True) for draw in draws), strict=True):
        size = max(exact.abs().max().item() for _, exact, _ in draws_of_one)
        error, naive_error = (max((draw[which].double() - draw[1]).abs().max().item() for draw in draws_of_one) for which in (0, 2))
        roundings = 16 if dtype is torch.float64 else 4  # f64 has no truth but its own math
        allowed = 2 * naive_error + roundings * torch.finfo(dtype).eps * (size + TERMS)
        assert error <= allowed, (error, naive_error, size)


def causal_mask():
    return torch.ones(T, S, dtype=torch.bool).tril()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.7}, {"scale": -0.3, "is_causal": True}])
@pytest.mark.parametrize("lengths", [(T, S), (S, T), (1, S), (S, 1), (33, 33)])
def test_lengths_scales_and_causality(served, dtype, options, lengths):
    t, s = lengths  # is_causal is aligned to the upper left whichever is longer
    agree(drawn(B, N, t, D, dtype=dtype), drawn(B, N, s, D, dtype=dtype), drawn(B, N, s, DV, dtype=dtype), **options)


SHAPES = [(T, S), (1, S), (T, 1), (1, 1), (N, T, S), (N, 1, S), (1, T, S), (B, 1, 1, S), (B, N, T, S), (B, 1, T, 1), (1, N, 1, S)]


@pytest.mark.parametrize("shape", SHAPES)
def test_boolean_masks(served, shape):
    mask = torch.rand(shape) > 0.4
    agree(drawn(B, N, T, D), drawn(B, N, S, D), drawn(B, N, S, DV), mask)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_float_masks(served, shape, grad):
    agree(drawn(B, N, T, D), drawn(B, N, S, D), drawn(B, N, S, DV), drawn(*shape, grad=grad))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float_masks_of_low_precision(served, dtype):
    operands = drawn(B, N, T, D, dtype=dtype), drawn(B, N, S, D, dtype=dtype), drawn(B, N, S, DV, dtype=dtype)
    agree(*operands, drawn(N, T, S, dtype=dtype))
    mask = drawn(T, S, grad=False)  # torch takes f32 too
    o, (exact, _) = sdpa(*operands, mask), truth(*operands, mask)
    assert o.dtype == dtype
    torch.testing.assert_close(o.double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


def test_rows_without_keys_are_zero(served):
    mask = torch.rand(B, N, T, S) > 0.4
    mask[:, 1, 2], mask[1, :, 5] = False, False
    operands = drawn(B, N, T, D), drawn(B, N, S, D), drawn(B, N, S, DV)
    agree(*operands, mask)
    assert (sdpa(*operands, mask)[:, 1, 2] == 0).all()
    agree(*operands, torch.zeros(B, N, T, S).masked_fill(~mask, -torch.inf))
    agree(*operands, torch.zeros(B, N, T, S).masked_fill(~mask, -1e30))  # a finite number hides no row whole


@pytest.mark.parametrize("factors", [(30, 30), (5.5, 5.5), (30, 1)])
def test_large_scores(served, factors):
    """Scores of size 900 and 30: each rounds by as much as moves its weight, so that an error of ours and one of torch's are two
    draws, either of which may be ten times the other. Over many programs ours are at most twice torch's."""
    ratios = []
    for _ in range(60):
        operands = [drawn(B, N, n, d).detach().mul(factor).requires_grad_()
                    for n, d, factor in ((T, D, factors[0]), (S, D, factors[1]), (S, DV, 1))]
        weights = torch.randn(B, N, T, DV)
        exact, of_exact = truth(*operands)
        naive, of_naive = truth(*operands, dtype=torch.float32)
        results = [(o.detach(), *torch.autograd.grad((o * weights).sum(), leaves))
                   for o, leaves in ((sdpa(*operands), operands), (naive, of_naive[:3]), (exact, of_exact[:3]))]
        ratios.append([[(x.double() - right).abs().max() + 1e-9 * right.abs().max() for x in (ours, theirs)]
                       for ours, theirs, right in zip(*results, strict=True)])
    errors = torch.tensor(ratios).log().mean(0).exp()  # [O and its gradients, Heddle's and torch's]
    assert (errors[:, 0] <= 2 * errors[:, 1]).all(), errors


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_grouped_heads(served, heads):
    agree(drawn(B, N, T, D), drawn(B, heads, S, D), drawn(B, heads, S, DV), enable_gqa=True, is_causal=True)


@pytest.mark.parametrize("dim, of_value", [(1, 1), (3, 5), (20, 20), (64, 64), (80, 48), (128, 128), (130, 7), (256, 256),
                                           (300, 300)])
def test_head_dims(served, dim, of_value):
    agree(drawn(1, 2, 5, dim), drawn(1, 2, 6, dim), drawn(1, 2, 6, of_value))


def test_three_dims(served):
    q, k, v = drawn(B, T, D), drawn(B, S, D), drawn(B, S, DV)
    agree(q, k, v, is_causal=True)
    agree(q, k, v, torch.rand(B, T, S) > 0.4)
    agree(q, k, v, torch.rand(T, S) > 0.4)


@pytest.mark.parametrize("change", [
    lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    lambda x: x.repeat_interleave(2, -1)[..., ::2],
    lambda x: x.mT.contiguous().mT,
    lambda x: x.repeat_interleave(3, 2)[:, :, ::3],
    lambda x: x[:1, :1].expand(x.shape),
    lambda x: torch.nn.functional.pad(x, (3, 2))[..., 3:-2],
], ids=["length before heads", "every second", "columns", "every third row", "expanded", "padded"])
def test_strides(served, change):
    q, k, v = (change(drawn(*shape, grad=False)).detach().requires_grad_()
               for shape in ((B, N, T, D), (B, N, S, D), (B, N, S, DV)))
    agree(q, k, v, is_causal=True)
    agree(q, k, v, (torch.rand(S, T) > 0.4).mT)


@pytest.mark.parametrize("wanted", ["q", "k", "v", "qv", "kv", ""])
def test_some_gradients(served, wanted):
    shapes = {"q": (B, N, T, D), "k": (B, N, S, D), "v": (B, N, S, DV)}
    agree(*(drawn(*shape, grad=name in wanted) for name, shape in shapes.items()), is_causal=True)


def test_gradients_with_other_strides(served):
    q, k, v = drawn(B, N, T, D), drawn(B, N, S, D), drawn(B, N, S, DV)
    for loss in (lambda o: o.sum(), lambda o: o.transpose(1, 2).reshape(-1)[::2].sum(), lambda o: o[:, :, 1].pow(2).sum()):
        found = torch.autograd.grad(loss(sdpa(q, k, v)), (q, k, v))
        exact, leaves = truth(q, k, v)
        for one, right in zip(found, torch.autograd.grad(loss(exact), leaves[:3]), strict=True):
            torch.testing.assert_close(one.double(), right, rtol=1e-5, atol=1e-5)


def test_dropout(served):
    """Values of the identity show which weights are dropped; with those the result and its gradients are torch's."""
    q, k = drawn(B, N, 40, D), drawn(B, N, 32, D)
    eye = torch.eye(32).expand(B, N, 32, 32).contiguous()
    torch.manual_seed(3)
    shown = sdpa(q, k, eye, dropout_p=0.3)
    dropped = shown == 0
    share = dropped.double().mean().item()
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / dropped.numel())**0.5
    assert (dropped[0, 0] != dropped[0, 1]).any() and (dropped[0, 0] != dropped[1, 0]).any()
    v, weights = drawn(B, N, 32, DV), torch.randn(B, N, 40, DV)
    torch.manual_seed(3)
    o = sdpa(q, k, v, dropout_p=0.3)
    exact, leaves = truth(q, k, v, dropout_p=0.3, dropout_mask=~dropped)
    torch.testing.assert_close(o.double(), exact, rtol=1e-5, atol=1e-5)
    for one, right in zip(torch.autograd.grad((o * weights).sum(), (q, k, v)),
                          torch.autograd.grad((exact * weights).sum(), leaves[:3]), strict=True):
        torch.testing.assert_close(one.double(), right, rtol=1e-5, atol=1e-5)
    assert (sdpa(q, k, v, dropout_p=0.3) != o).any()  # the generator has gone on


def test_checkpointed_dropout(served):
    q, k, v = drawn(B, N, T, D), drawn(B, N, S, D), drawn(B, N, S, DV)

    def loss(q, k, v):
        return sdpa(q, k, v, dropout_p=0.4).pow(2).sum()

    torch.manual_seed(5)
    plain = torch.autograd.grad(loss(q, k, v), (q, k, v))
    for reentrant in (False, True):
        torch.manual_seed(5)
        again = torch.utils.checkpoint.checkpoint(loss, q, k, v, use_reentrant=reentrant)
        for x in (q, k, v):
            x.grad = None
        again.backward()
        assert all(torch.equal(x.grad, one) for x, one in zip((q, k, v), plain, strict=True))


def test_modules(served):
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = torch.randn(3, 11, 32)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(11)
    heddle.torch.disable()
    expected = layer(x, src_mask=mask, is_causal=False)
    heddle.torch.enable()
    torch.testing.assert_close(layer(x, src_mask=mask, is_causal=False), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(served, dtype):
    q, k, v = drawn(B, N, T, D), drawn(B, N, S, D), drawn(B, N, S, DV)
    with torch.autocast(q.device.type, dtype):
        o = sdpa(q, k, v, drawn(T, S, grad=False))
    assert o.dtype == dtype
    assert all(x.dtype == torch.float32 for x in torch.autograd.grad(o.sum(), (q, k, v)))


def test_inference_and_no_grad(served):
    q, k, v = drawn(B, N, T, D), drawn(B, N, S, D), drawn(B, N, S, DV)
    exact = truth(q, k, v)[0]
    with torch.no_grad():
        torch.testing.assert_close(sdpa(q, k, v).double(), exact, rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        o = sdpa(q, k, v)
        torch.testing.assert_close(o.double(), exact, rtol=1e-5, atol=1e-5)
    assert not o.requires_grad


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(served, dynamic):
    def program(q, k, v, mask):
        return sdpa(q * 2, k, v, mask, dropout_p=0.0).sin() + sdpa(q, k, v, is_causal=True)

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for t in (T, 12):
        q, k, v, mask = drawn(B, N, t, D), drawn(B, N, S, D), drawn(B, N, S, DV), drawn(N, t, S)
        eager, traced = program(q, k, v, mask), compiled(q, k, v, mask)
        torch.testing.assert_close(traced, eager, rtol=1e-6, atol=1e-6)
        for one, other in zip(torch.autograd.grad(traced.sum(), (q, k, v, mask)),
                              torch.autograd.grad(eager.sum(), (q, k, v, mask)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_compiled_dropout(served):
    q, k, eye = drawn(B, N, 40, D), drawn(B, N, 32, D), torch.eye(32).expand(B, N, 32, 32).contiguous()
    compiled = torch.compile(lambda *x: sdpa(*x, dropout_p=0.3), fullgraph=True, backend="aot_eager")
    dropped, again = compiled(q, k, eye) == 0, compiled(q, k, eye) == 0
    assert abs(dropped.double().mean().item() - 0.3) < 5 * (0.3 * 0.7 / dropped.numel())**0.5
    assert (dropped != again).any()


def test_what_was_compiled_before_is_compiled_again():
    compiled = torch.compile(lambda q: sdpa(q, q, q), fullgraph=True, backend="aot_eager")
    q = drawn(B, N, T, D)
    before = counts()
    first = compiled(q)
    assert counts() == before
    with heddle.torch.enable():
        torch.testing.assert_close(compiled(q), first, rtol=1e-5, atol=1e-5)
        traced = counts()
        assert traced[0] > before[0] and traced[1] == before[1]
    torch.testing.assert_close(compiled(q), first, rtol=0, atol=0)
    assert counts() == traced


def test_a_second_derivative_is_refused():
    q, k, v = drawn(B, N, T, D), drawn(B, N, S, D), drawn(B, N, S, DV)
    for loss in (lambda o: o.sum(), lambda o: o.pow(2).sum()):
        with heddle.torch.enable():
            gradient, = torch.autograd.grad(loss(sdpa(q, k, v)), q, create_graph=True)
        assert gradient.requires_grad  # a penalty of it is no constant
        with pytest.raises(RuntimeError, match="attention: a second derivative is taken, expected the first alone"):
            gradient.pow(2).sum().backward()


def test_disabled_it_is_torchs_own():
    q = drawn(B, N, T, D)
    before, own = counts(), sdpa(q, q, q)
    with heddle.torch.enable() as enabled:
        heddle.torch.enable()  # twice is once
        assert enabled is not None and "Attention" in type(sdpa(q, q, q).grad_fn).__name__
    after = counts()
    again = sdpa(q, q, q)
    assert torch.equal(again, own) and type(again.grad_fn) is type(own.grad_fn)
    assert counts() == after == (before[0] + 1, before[1])
    heddle.torch.disable()


class Named(torch.Tensor):
    """A tensor of a program's own."""


@pytest.mark.parametrize("call, reason", [
    (lambda q, k, v: sdpa(q[None], k[None], v[None]), "the ranks are 5, 5 and 5"),
    (lambda q, k, v: sdpa(q[0, 0], k[0, 0], v[0, 0]), "the ranks are 2"),
    (lambda q, k, v: sdpa(q[:, :, :0], k, v), "a tensor is empty"),
    (lambda q, k, v: sdpa(q, k[:, :, :0], v[:, :, :0]), "a tensor is empty"),
    (lambda q, k, v: sdpa(q, k, v, dropout_p=1.0), "dropout_p is 1.0"),
    (lambda q, k, v: sdpa(q, k[:1], v[:1]), "the batches differ"),
    (lambda q, k, v: sdpa(q, k[:, :1], v[:, :1]), "the heads are 4, 1 and 1"),
    (lambda q, k, v: sdpa(q.as_subclass(Named), k, v), "a tensor is of a subclass"),
    (lambda q, k, v: sdpa(*(torch.nested.nested_tensor(list(x.unbind())) for x in (q, k, v))), None),
    (lambda q, k, v: torch.vmap(sdpa)(q[:, None], k[:, None], v[:, None]), None),
    (lambda q, k, v: torch.func.grad(lambda q: sdpa(q, k, v).sin().sum())(q), "a transform of torch.func is at work"),
    (lambda q, k, v: torch.func.vmap(torch.func.grad(lambda q: sdpa(q, q, q).sin().sum()))(q[:, None]), None),
    (lambda q, k, v: torch.func.jvp(lambda q: sdpa(q, k, v), (q,), (q,))[1], "a transform of torch.func is at work"),
])
def test_what_is_left_to_torch_is_torchs_own(call, reason):
    operands = [drawn(*shape, grad=False) for shape in ((B, N, T, D), (B, N, S, D), (B, N, S, DV))]
    # On a CPU all of torch's kernels do the same. On a GPU some take no tangents, or give NaN where all is dropped.
    with nullcontext() if ON_GPU else torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = outcome(call, operands)
    before = counts()
    with heddle.torch.enable():
        found = outcome(call, operands)
    assert type(found) is type(expected)
    if isinstance(found, torch.Tensor):
        assert type(found) is type(expected)
        for one, other in zip(*(x.unbind() if x.is_nested else [x] for x in (found, expected)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert counts()[0] == before[0]
    if reason is not None:
        assert counts()[1] > before[1] and reason in heddle.torch.explain()


def outcome(call, operands):
    try:
        return call(*operands)
    except (RuntimeError, ValueError) as error:
        return error


@pytest.mark.parametrize("call", [
    lambda q, k, v: sdpa(q, k, v, torch.ones(T, S, dtype=torch.bool), is_causal=True),
    lambda q, k, v: sdpa(q, k, v, torch.ones(T, S, dtype=torch.int32)),
    lambda q, k, v: sdpa(q, k, v, torch.ones(3, S, dtype=torch.bool)),
    lambda q, k, v: sdpa(q, k.half(), v),
    lambda q, k, v: sdpa(q, k[..., :3], v),
    lambda q, k, v: sdpa(q, k, v[:, :, :3]),
])
def test_errors_are_torchs_own(call):
    operands = [drawn(*shape, grad=False) for shape in ((B, N, T, D), (B, N, S, D), (B, N, S, DV))]
    expected = outcome(call, operands)
    with heddle.torch.enable():
        found = outcome(call, operands)
    assert type(found) is type(expected)
    if ON_GPU and isinstance(expected, torch.Tensor):  # there torch takes a mask beside is_causal
        assert torch.equal(found, expected)
    else:
        assert isinstance(expected, (RuntimeError, ValueError)) and str(found) == str(expected)


def test_the_math_backend_alone_is_torchs_own():
    q = drawn(B, N, T, D)
    with heddle.torch.enable(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        sdpa(q, q, q)
    assert "the program asks for torch's MATH backend alone" in heddle.torch.explain()


def test_what_no_engine_runs_is_torchs_own(monkeypatch):
    """A refusal of the library, such as a GPU's, leaves the call to torch with its sentence."""
    from heddle._library import Error
    from heddle.torch import _attention_ops

    def refuse(*_):
        raise Error("attention: this engine runs nothing of the kind", "GRAPH_NOT_SUPPORTED")

    monkeypatch.setattr(_attention_ops, "forward_call", refuse)
    q = drawn(1, 1, 3, 3)  # of sizes that no other test has: refusals are kept
    with heddle.torch.enable():
        o = sdpa(q, q, q)
    torch.testing.assert_close(o, truth(q, q, q)[0].float(), rtol=1e-5, atol=1e-5)
    assert "attention: this engine runs nothing of the kind" in heddle.torch.explain()
