"""heddle.torch's ops by name, and heddle's functions on tensors, against the formulas in f64."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import heddle
import heddle.torch
from heddle.torch import _attention_ops

B, T, S, N, K, H, D = 2, 7, 9, 4, 2, 16, 8


def drawn(*shape, dtype=torch.float32, grad=True):
    return torch.randn(shape).to(dtype).requires_grad_(grad)


def rows(dtype=torch.float32):
    return drawn(B, T, N, H, dtype=dtype), drawn(B, S, K, H, dtype=dtype), drawn(B, S, K, D, dtype=dtype)


def formula(q, k, v, *, bias=None, visible=None, cap=None, sink=None):
    """Attention in f64 of [B, T, N, H] and the like, and the log-sum-exp, by torch's own ops."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.mT * q.shape[-1]**-0.5
    s = s if cap is None else cap * (s / cap).tanh()
    s = s if bias is None else s + bias.double()
    s = s if visible is None else s.masked_fill(~visible, -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink.double()[:, None, None].expand(*s.shape[:3], 1)], -1)
    return (s.softmax(-1)[..., :k.shape[2]] @ v).transpose(1, 2), s.logsumexp(-1)


def gradients(results, weights, operands):
    return torch.autograd.grad(sum((x * w).sum() for x, w in zip(results, weights, strict=True)), operands)


def close(found, expected, tolerance=2e-5):
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


i, j = torch.arange(T)[:, None], torch.arange(S)
MASK = (torch.arange(B * T * S).reshape(B, 1, T, S) * 7 % 11 > 3) | (j == 0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("options, expected", [
    ({}, {}),
    ({"bias": (N, 1, S)}, {"bias": (N, 1, S)}),
    ({"bias": (B, N, T, S), "mask": MASK, "soft_cap": 1.5}, {"bias": (B, N, T, S), "visible": MASK, "cap": 1.5}),
    ({"sink": (N,), "causal": True}, {"sink": (N,), "visible": j <= i}),
    ({"window": (2, 1), "causal": "bottom_right"}, {"visible": (j <= i + S - T) & (j >= i + S - T - 2)}),
    ({"kv_lengths": torch.tensor([S, 4])}, {"visible": j < torch.tensor([S, 4])[:, None, None, None]}),
    ({"kv_lengths": torch.tensor([[S, 1], [4, 2]], dtype=torch.int32)[:, 0]},
     {"visible": j < torch.tensor([S, 4])[:, None, None, None]}),
    ({"kv_lengths": torch.tensor([2**32 + 3, 4])}, {"visible": j < torch.tensor([S, 4])[:, None, None, None]}),
])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention(options, expected, compiled, dtype):
    q, k, v = rows(dtype)
    tolerance = 2e-5 if dtype is torch.float32 else 1e-13
    made = {name: drawn(*shape, dtype=dtype) for name, shape in options.items() if name in ("bias", "sink")}
    attend = torch.compile(heddle.torch.attention, fullgraph=True, backend="aot_eager") if compiled else heddle.torch.attention
    if dtype is torch.float64 and q.is_cuda:
        with pytest.raises(Exception, match="sdpa q is f64, expected bf16, f16, f32"):  # torch.compile wraps it
            attend(q, k, v, return_lse=True, **(options | made))
        return
    found = attend(q, k, v, return_lse=True, **(options | made))
    exact = formula(q, k, v, **(expected | made))
    weights = [torch.randn(x.shape).to(dtype) for x in exact]
    operands = [q, k, v, *made.values()]
    for one, right in zip((*found, *gradients(found, weights, operands)), (*exact, *gradients(exact, weights, operands)),
                          strict=True):
        assert one.dtype == dtype
        close(one, right, tolerance)
    only_o = attend(q, k, v, **(options | made))
    close(only_o, exact[0], tolerance)
    for one, right in zip(gradients([only_o], weights[:1], operands), gradients(formula(q, k, v, **(expected | made))[:1],
                                                                               weights[:1], operands), strict=True):
        close(one, right, tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_in_low_precision(dtype):
    q, k, v = rows(dtype)
    found, exact = heddle.torch.attention(q, k, v, return_lse=True), formula(q, k, v)
    tolerance = 8 * torch.finfo(dtype).eps
    close(found[0], exact[0], tolerance)
    weights = [torch.randn(x.shape) for x in exact]
    for one, right in zip(gradients(found, weights, (q, k, v)), gradients(exact, weights, (q, k, v)), strict=True):
        assert one.dtype == dtype
        close(one, right, tolerance * max(1, right.abs().max().item()))


def test_layouts_and_ranks():
    q, k, v = rows()
    expected = heddle.torch.attention(q, k, v)
    turned = heddle.torch.attention(*(x.transpose(1, 2) for x in (q, k, v)), layout="BNTH")
    assert torch.equal(turned.transpose(1, 2), expected) and torch.equal(heddle.torch.attention(q[1], k[1], v[1]), expected[1])
    one, lse = heddle.torch.attention(q[1], k[1], v[1], kv_lengths=torch.tensor(5), return_lse=True)
    assert one.shape == (T, N, D) and lse.shape == (N, T)
    close(one, formula(q[1:], k[1:, :5], v[1:, :5])[0][0])


def test_of_nothing():
    q, k, v = rows()
    sink = drawn(N)
    o, lse = heddle.torch.attention(q, k[:, :0], v[:, :0], sink=sink, return_lse=True)
    assert (o == 0).all() and torch.equal(lse, sink[:, None].expand(B, N, T))
    weights = torch.randn(B, N, T)
    (o.sum() + (lse * weights).sum()).backward()
    assert (q.grad == 0).all()
    close(sink.grad, weights.sum((0, 2)))
    assert (heddle.torch.attention(q, k[:, :0], v[:, :0], return_lse=True)[1] == -torch.inf).all()
    lengths = torch.tensor([T, 2])  # rows behind them have no sink either
    there = torch.arange(T) < lengths[:, None, None]
    lse = heddle.torch.attention(q, k[:, :0], v[:, :0], sink=sink, q_lengths=lengths, return_lse=True)[1]
    assert torch.equal(lse, torch.where(there, sink[:, None], -torch.inf))
    d_sink, = torch.autograd.grad(lse, sink, torch.ones_like(lse))
    assert torch.equal(d_sink, torch.full((N,), T + 2.0))
    assert heddle.torch.attention(q[:, :0], k, v).shape == (B, 0, N, D)


def test_dropout():
    q, k, _ = rows()
    eye = torch.eye(S)[None, :, None].expand(B, S, K, S)
    for dropout in ((0.4, 3), (0.4, torch.tensor(3), torch.tensor(0))):
        shown = heddle.torch.attention(q, k, eye, dropout=dropout)
        weights = heddle.torch.attention(q, k, eye)
        kept = shown != 0
        close(shown, torch.where(kept, weights / 0.6, 0))
        found = torch.autograd.grad(shown.cos().sum(), (q, k))
        expected = torch.autograd.grad(torch.where(kept, formula(q, k, eye)[0] / 0.6, 0).cos().sum(), (q, k))
        for one, right in zip(found, expected, strict=True):
            close(one, right)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_norms(dtype, compiled):
    x, weight, bias = drawn(3, 5, 4, 16, dtype=dtype), drawn(4, 16), drawn(4, 16, dtype=torch.float64)
    for name, operands, own in (
            ("layer_norm", (x, weight, bias), lambda x, *columns: functional.layer_norm(x, (4, 16), *columns, 1e-5)),
            ("layer_norm", (x, weight), lambda x, *columns: functional.layer_norm(x, (4, 16), *columns, eps=1e-5)),
            ("rms_norm", (x, weight), lambda x, column: functional.rms_norm(x, (4, 16), column, 1e-5)),
            ("layer_norm", (x[..., :1], weight[0, :1], bias[0, :1]), lambda x, *both: functional.layer_norm(x, (1,), *both)),
            ("rms_norm", (x[..., :1], weight[0, :1]), lambda x, column: functional.rms_norm(x, (1,), column, 1e-5))):
        op = getattr(heddle.torch, name)
        y = (torch.compile(op, fullgraph=True, backend="aot_eager") if compiled else op)(*operands)
        exact = own(*(one.double() for one in operands))
        weights = [torch.randn(y.shape)]
        assert y.dtype == weight.dtype
        close(y, exact)
        wanted = (x, weight, bias)[:len(operands)]
        for one, right, operand in zip(gradients([y], weights, wanted), gradients([exact], weights, wanted), wanted, strict=True):
            assert one.dtype == operand.dtype
            close(one, right, 2e-2 if operand.dtype == torch.bfloat16 else 2e-5)
        torch.compiler.reset()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("options", [{}, {"positions": True}, {"angles": True, "positions": True}, {"angles": True},
                                     {"pairing": "interleaved", "rope_dim": 8, "output_scale": 0.5},
                                     {"leading": True, "rope_dim": 6, "positions": True},
                                     {"leading": True, "rope_dim": 10, "pairing": "interleaved"}])
def test_rope(options, compiled):
    """Against NumPy's, which is held against the formula; its derivative turns back, and so does the one of that."""
    x = drawn(B, T, N, H)
    given = {"positions": torch.randint(0, 20, (B, T)), "angles": torch.randn(20, H // 2)}
    options = {name: given.get(name, value) for name, value in options.items()}
    y = (torch.compile(heddle.torch.rope, fullgraph=True, backend="aot_eager") if compiled else heddle.torch.rope)(x, **options)
    arrays = {name: value.cpu().numpy() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    np.testing.assert_allclose(y.detach().cpu().numpy(), heddle.rope(x.detach().cpu().numpy(), **arrays), rtol=1e-5, atol=1e-5)
    c, z = torch.randn(y.shape, requires_grad=True), torch.randn(x.shape)
    back, = torch.autograd.grad((y * c).sum(), x, create_graph=not compiled)
    close((back * x).sum(), (y * c).sum(), 1e-3)  # <R x, c> = <x, R' c>
    if compiled:  # torch.compile has no second derivatives
        return
    again, = torch.autograd.grad((back * z).sum(), c)
    close(again, heddle.torch.rope(z, **options))


@pytest.mark.parametrize("call, name", [
    (lambda x: heddle.torch.attention(x, x, x), "attention"),
    (lambda x: heddle.torch.rms_norm(x, torch.ones(H)), "rms_norm"),
    (lambda x: heddle.torch.layer_norm(x, torch.ones(H), torch.ones(H)), "layer_norm")])
def test_derivatives_that_there_are_none_of_are_refused(call, name):
    x = drawn(B, T, N, H)
    for compiled in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        with pytest.raises(RuntimeError, match="second derivative|double backward|no autograd formula"):
            gradient, = torch.autograd.grad(compiled(x).sin().sum(), x, create_graph=True)
            gradient.pow(2).sum().backward()
    for transform in (lambda: torch.func.grad(lambda x: call(x).sum())(x), lambda: torch.func.jvp(call, (x,), (x,)),
                      lambda: torch.func.vmap(torch.func.grad(lambda x: call(x).sum()))(x[:, None])):
        with pytest.raises(RuntimeError, match=f"{name}: derivatives are taken by torch.func or in forward mode"):
            transform()
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="in forward mode"):
        call(torch.autograd.forward_ad.make_dual(x, x))


def test_vmap():
    x, places = drawn(3, B, T, N, H), torch.randint(0, 9, (3, B, T))
    for call in (lambda x, p: heddle.torch.attention(x, x, x, causal=True), lambda x, p: heddle.torch.rope(x, positions=p),
                 lambda x, p: heddle.torch.rms_norm(x, torch.ones(H))):
        found, expected = torch.vmap(call)(x, places), torch.stack([call(*one) for one in zip(x, places, strict=True)])
        close(found, expected)
        for one, right in zip(*(torch.autograd.grad(y.sin().sum(), x) for y in (found, expected)), strict=True):
            close(one, right)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_program_that_asks_for_deterministic_algorithms_has_them(compiled, monkeypatch):
    """Which on a CPU all are: what is asked of the plan of the gradients is looked at."""
    asked, of_backward = [], _attention_ops.backward_call

    def backward_call(given, config, *rest):
        asked.append(config.deterministic)
        return of_backward(given, config, *rest)

    def call(x):
        return heddle.torch.attention(x, x, x)

    monkeypatch.setattr(_attention_ops, "backward_call", backward_call)
    for wanted in (False, True):
        torch.use_deterministic_algorithms(wanted)
        try:
            run = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
            run(drawn(B, T, N, H)).sum().backward()
        finally:
            torch.use_deterministic_algorithms(False)
    assert asked == [False, True]


def test_vmap_of_no_entries():
    x = drawn(0, B, T, N, H)
    for call in (lambda x: heddle.torch.attention(x, x, x), heddle.torch.rope, lambda x: heddle.torch.rms_norm(x, torch.ones(H))):
        found = torch.vmap(call)(x)
        assert found.shape == x.shape and found.dtype == x.dtype
    assert torch.vmap(heddle.torch.rope, in_dims=2, out_dims=1)(x.movedim(0, 2)).shape == (B, 0, T, N, H)


OPS = {"attention": lambda x: heddle.torch.attention(x, x, x, causal=True), "rope": heddle.torch.rope,
       "rms_norm": lambda x: heddle.torch.rms_norm(x, torch.ones(H)),
       "layer_norm": lambda x: heddle.torch.layer_norm(x, torch.ones(H), torch.zeros(H))}


@pytest.mark.parametrize("name", OPS)
def test_several_gradients(name):
    """vmap gives them one after the other; what torch had before torch.func knows no rule for it."""
    x = drawn(B, T, N, H)
    y, weights = OPS[name](x), drawn(3, B, T, N, H, grad=False)
    found, = torch.vmap(lambda w: torch.autograd.grad(y, x, w, retain_graph=True))(weights)
    close(found, torch.stack([torch.autograd.grad(y, x, w, retain_graph=True)[0] for w in weights]))
    with pytest.raises(RuntimeError, match=f"{name}: several gradients are taken at once .is_grads_batched, vectorize., expected one"):
        torch.autograd.grad(y, x, weights, is_grads_batched=True)


@pytest.mark.parametrize("call", [
    lambda x, n: heddle.torch.attention(x, x, x, scale=n[0]), lambda x, n: heddle.torch.attention(x, x, x, soft_cap=n[0]),
    lambda x, n: heddle.torch.attention(x, x, x, window=(n[1], None)), lambda x, n: heddle.torch.rope(x, rope_dim=n[1]),
    lambda x, n: heddle.torch.rms_norm(x, torch.ones(H), n[0]), lambda x, n: heddle.torch.rope(x, output_scale=n[0]),
    lambda x, n: torch.from_numpy(heddle.attention(*[x.numpy()] * 3, scale=n[0])),
    lambda x, n: torch.from_numpy(heddle.rope(x.numpy(), output_scale=n[0]))], ids=range(8))
def test_numbers_in_tensors_are_read_at_each_call(call):
    x, numbers = drawn(B, T, N, H, grad=False), (torch.tensor(1.0), torch.tensor(2))
    before = call(x, numbers)
    for number in numbers:
        number.mul_(2)
    after = call(x, numbers)
    assert not torch.equal(before, after) and torch.equal(after, call(x, (torch.tensor(2.0), torch.tensor(4))))


@pytest.mark.parametrize("change", [torch._neg_view, lambda x: torch._neg_view(x.detach()).requires_grad_(),
                                    lambda x: torch.view_as_complex(x.repeat_interleave(2, -1).unflatten(-1, (-1, 2))).conj().imag])
def test_numbers_whose_sign_is_still_to_be_changed(change):
    q, k, v = rows()
    turned = change(q)
    assert turned.is_neg()
    close(heddle.torch.attention(turned, k, v), formula(turned.resolve_neg(), k, v)[0])
    close(heddle.torch.rope(turned), heddle.torch.rope(turned.resolve_neg()))
    close(heddle.torch.rms_norm(turned, torch.ones(H)), heddle.torch.rms_norm(turned.resolve_neg(), torch.ones(H)))
    with heddle.torch.enable():
        found = functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (turned, k, v)), enable_gqa=True)
    close(found.transpose(1, 2), formula(turned.resolve_neg(), k, v)[0])


@pytest.mark.skipif(torch.get_default_device().type != "cpu", reason="memory of a GPU is torch's own")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operands_that_lie_at_no_whole_elements(dtype):
    """torch.frombuffer takes any address; strides are kept, those of rows with gaps and of columns too."""
    def moved(x, *order):
        lies = x.detach().permute(order).contiguous()
        there = torch.frombuffer(bytearray(b"\0" + lies.numpy().tobytes()), dtype=dtype, offset=1).reshape(lies.shape)
        return there.permute([order.index(n) for n in range(len(order))]).requires_grad_()

    q, k, v = rows(dtype)
    operands = moved(q, 0, 1, 2, 3), moved(k, 2, 1, 0, 3), moved(v, 3, 0, 1, 2)
    assert all(x.data_ptr() % x.element_size() for x in operands)
    bias = moved(drawn(N, T, S, dtype=dtype), 2, 0, 1)
    weight = drawn(B, T, N, D, dtype=dtype, grad=False)
    expected = formula(q, k, v, bias=bias)[0]
    of_truth = torch.autograd.grad((expected * weight).sum(), (q, k, v, bias))
    found = heddle.torch.attention(*operands, bias=bias)
    close(found, expected)
    for one, right in zip(torch.autograd.grad((found * weight).sum(), (*operands, bias)), of_truth, strict=True):
        close(one, right)
    close(heddle.torch.rope(operands[0]), heddle.torch.rope(q))
    close(heddle.torch.rms_norm(operands[0], torch.ones(H)), heddle.torch.rms_norm(q, torch.ones(H)))
    with heddle.torch.enable(), torch.no_grad():
        found = functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in operands), enable_gqa=True)
    close(found.transpose(1, 2), formula(q, k, v)[0])


def test_gradients_without_memory():
    q, k, v = rows()
    for call in (lambda: heddle.torch.attention(q, k, v), lambda: heddle.torch.rope(q),
                 lambda: heddle.torch.rms_norm(q, torch.ones(H))):
        y = call()
        found, = torch.autograd.grad(y, q, torch._efficientzerotensor(y.shape, device=q.device))
        assert (found == 0).all()


def test_autocast():
    q, k, v = rows()
    with torch.autocast(q.device.type, torch.bfloat16):
        o = heddle.torch.attention(q, k, v)
    assert o.dtype == torch.bfloat16 and torch.autograd.grad(o.sum(), q)[0].dtype == torch.float32


def test_registered_ops_keep_torchs_rules():
    """torch's own checks of an operator: its schema, its fake, its gradient, and it under AOT dispatch."""
    q, k, v = rows()
    nothing = [None] * 9
    for keeps, x in ((True, (q, k, v)), (False, [one.detach() for one in (q, k, v)])):
        torch.library.opcheck(torch.ops.heddle.attention.default,
                              (*x, *nothing, 0.25, None, None, 0, False, 0.0, False, "BTNH", True, keeps))
    torch.library.opcheck(torch.ops.heddle.norm.default, (drawn(5, 16), drawn(16), drawn(16), "layer_norm", 1e-5))
    torch.library.opcheck(torch.ops.heddle.rope.default,
                          (drawn(B, T, N, H), torch.randn(T, H - 4), None, H - 4, True, 1.0, "halves", "BTNH", T, B, False))


def test_heddles_own_functions_take_tensors():
    q, k, v = rows()
    assert torch.equal(heddle.attention(q, k, v, causal=True), heddle.torch.attention(q, k, v, causal=True))
    assert heddle.rope(q).grad_fn is not None and heddle.rms_norm(q, torch.ones(H)).grad_fn is not None
    assert torch.equal(heddle.layer_norm(q, torch.ones(H), eps=1e-3), heddle.torch.layer_norm(q, torch.ones(H), None, 1e-3))


@pytest.mark.parametrize("change, error, sentence", [
    ({"q": lambda x: x.double()}, TypeError, "attention: k has dtype float32, expected float64"),
    ({"k": lambda x: x.double()}, TypeError, "attention: k has dtype float64, expected float32"),
    ({"q": lambda x: x.tolist()}, TypeError, "attention: q is of type list, expected a torch.Tensor"),
    ({"k": lambda x: x.detach().cpu().numpy()}, TypeError, "attention: k is of type ndarray, expected a torch.Tensor"),
    ({"v": lambda x: torch.nested.nested_tensor(list(x))}, TypeError, "attention: v is a nested tensor, expected a strided one"),
    ({"v": lambda x: x.to_sparse()}, TypeError, "attention: v is a tensor of layout torch.sparse_coo"),
    ({"v": lambda x: x.to("meta")}, ValueError, "attention: v lies on meta and q on .*, expected one device"),
    ({"q": lambda x: x.to(torch.complex64)}, TypeError, "attention: q has a data type that Heddle has no name for"),
    ({"q": lambda x: x[0]}, ValueError, "expected all three with a batch or all without"),
    ({"k": lambda x: x[..., :8]}, ValueError, "attention: k has head dim 8, expected 16 as q has"),
    ({"mask": torch.ones(3)}, TypeError, "attention: mask has dtype float32, expected bool"),
    ({"sink": torch.ones(3)}, ValueError, r"attention: sink has shape \(3,\), expected \(4,\)"),
    ({"dropout": (0.5, 1.5)}, TypeError, "attention: dropout's seed is of type float, expected an int"),
    ({"dropout": (0.5, torch.ones(2))}, TypeError, r"dropout's seed is torch.float32\[2\] on .*, expected one int32 or int64"),
    ({"segment_ids": (torch.full((B, T), 2**40), torch.full((B, S), 2**41))}, ValueError,
     "attention: segment_ids has ids from 1099511627776 to 1099511627776, expected none above 16777216 in magnitude"),
    ({"segment_ids": (None, torch.zeros(B, S, dtype=torch.int32))}, TypeError, "attention: segment_ids has None in the place of an"),
    ({"causal": 1}, TypeError, "attention: causal is int, expected True or False"),
    ({"scale": torch.ones((), requires_grad=True)}, TypeError, "attention: scale requires a gradient, which is only possible for"),
])
def test_refusals_are_sentences(change, error, sentence):
    given = dict(zip("qkv", rows(), strict=True))
    given |= {name: value(given[name]) if callable(value) else value for name, value in change.items()}
    with pytest.raises(error, match=sentence):
        heddle.torch.attention(**given)


@pytest.mark.parametrize("call, error, sentence", [
    (lambda x: heddle.torch.rms_norm(x, torch.ones(3)), ValueError, r"rms_norm: weight has shape \(3,\), expected the last dims"),
    (lambda x: heddle.torch.layer_norm(x, torch.ones(H), torch.ones(3)), ValueError, r"layer_norm: bias has shape \(3,\)"),
    (lambda x: heddle.torch.rms_norm(x.long(), torch.ones(H)), TypeError, "rms_norm: x has dtype int64, expected float64"),
    (lambda x: heddle.torch.rope(x[..., :3]), ValueError, "rope: x has head dim 3, expected an even one"),
    (lambda x: heddle.torch.rope(x, torch.ones(T, H // 2, requires_grad=True)), TypeError, "rope: angles requires a gradient"),
    (lambda x: heddle.torch.rms_norm(x, torch.ones(H), torch.ones((), requires_grad=True)), TypeError,
     "rms_norm: eps requires a gradient, which is only possible for arrays; pass eps.detach()"),
    (lambda x: heddle.torch.rope(x, leading=torch.ones(1)), TypeError, "rope: leading is Tensor, expected True or False"),
    (lambda x: heddle.torch.rope(x, positions=torch.ones(T)), TypeError, "rope: positions has dtype float32, expected int32"),
])
def test_other_refusals_are_sentences(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(drawn(B, T, N, H))


def test_versions():
    from heddle.torch._versions import refusal

    assert refusal(torch.__version__) is None and refusal("2.15.0+cu132") is None and refusal("3.0.0a1") is None
    assert refusal("2.7.1") == "heddle.torch works with torch 2.8 and later, and torch 2.7.1 is installed."
