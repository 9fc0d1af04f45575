"""heddle.cudnn with torch's tensors on an NVIDIA GPU, judged by torch in f64."""

import ctypes
import math
import time

import heddle.cudnn as cudnn
import pytest

torch = pytest.importorskip("torch")

DEVICE = "cuda"
HALF, FLOAT, INT32 = cudnn.data_type.HALF, cudnn.data_type.FLOAT, cudnn.data_type.INT32
B, HQ, HK, SQ, SKV, D = 2, 8, 2, 130, 200, 64


@pytest.fixture(scope="session", autouse=True)
def gpu():
    return torch.zeros(1, device=DEVICE).device


@pytest.fixture(scope="module")
def handle():
    made = cudnn.create_handle(device=DEVICE)
    if DEVICE == "cuda":
        cudnn.set_stream(handle=made, stream=torch.cuda.current_stream().cuda_stream)
    yield made
    cudnn.destroy_handle(made)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def drawn(*dims, dtype=torch.float16):
    """[B, H, S, D] in memory of [B, S, H, D]."""
    b, h, s, d = dims
    return torch.randn(b, s, h, d, device=DEVICE, dtype=dtype).transpose(1, 2)


def attention(q, k, v, scale, hidden=None):
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * scale
    s = s if hidden is None else s.masked_fill(hidden, -math.inf)
    return torch.softmax(s, -1).nan_to_num(0) @ v, torch.logsumexp(s, -1, keepdim=True)


def causal(sq, skv):
    return torch.ones(sq, skv, dtype=torch.bool, device=DEVICE).triu(1)


def near(found, truth, rounding=1e-3):
    finite = truth.isfinite()
    assert torch.equal(found.double()[~finite], truth[~finite])
    assert (found.double() - truth)[finite].abs().max() <= 1.5 * rounding * max(1.0, truth[finite].abs().max().item())


def graph_of(handle, dtype=torch.float16, **options):
    return cudnn.pygraph(io_data_type=dtype, intermediate_data_type=FLOAT, compute_data_type=FLOAT, handle=handle, **options)


def built(graph):
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
    return torch.empty(graph.get_workspace_size(), device=DEVICE, dtype=torch.uint8)


def forward(handle, q, k, v, **options):
    """The graph, its workspace and its pack; O and Stats have the uids 3 and 4."""
    graph = graph_of(handle, q.dtype)
    tensors = [graph.tensor(dim=x.shape, stride=x.stride(), data_type=x.dtype, uid=uid) for uid, x in enumerate((q, k, v))]
    o, stats = graph.sdpa(*tensors, attn_scale=0.125, generate_stats=True, **options)
    out = torch.full_like(q, math.nan)
    lse = torch.full((*q.shape[:3], 1), math.nan, device=DEVICE)
    o.set_output(True).set_uid(3).set_dim(out.shape).set_stride(out.stride())
    stats.set_output(True).set_uid(4).set_dim(lse.shape).set_stride(lse.stride()).set_data_type(torch.float32)
    return graph, built(graph), {0: q, 1: k, 2: v, 3: out, 4: lse, None: None}


@pytest.mark.parametrize("dtype, rounding", [(torch.float16, 1e-3), (torch.bfloat16, 8e-3), (torch.float32, 1e-5)])
def test_forward_and_backward(handle, dtype, rounding):
    q, k, v = drawn(B, HQ, SQ, D, dtype=dtype), drawn(B, HK, SKV, D, dtype=dtype), drawn(B, HK, SKV, D, dtype=dtype)
    graph, workspace, pack = forward(handle, q, k, v, use_causal_mask=True)
    graph.execute(pack, workspace, handle=handle)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    truth, lse = attention(*wide, 0.125, causal(SQ, SKV))
    near(pack[3], truth.detach(), rounding)
    near(pack[4], lse.detach(), 1e-4)

    d_o = drawn(B, HQ, SQ, D, dtype=dtype)
    graph = graph_of(handle, dtype)
    given = [q, k, v, pack[3], d_o, pack[4]]
    tensors = [graph.tensor_like(x) for x in given]
    gradients = graph.sdpa_backward(*tensors, attn_scale=0.125, use_causal_mask=True, use_deterministic_algorithm=True)
    found = [torch.full_like(x, math.nan) for x in (q, k, v)]
    for gradient, x in zip(gradients, found, strict=True):
        gradient.set_output(True).set_dim(x.shape).set_stride(x.stride())
    workspace = built(graph)
    pack = dict(zip((*tensors, *gradients), (*given, *found), strict=True))
    graph.execute(pack, workspace, handle)
    first = [x.clone() for x in found]
    truth.backward(d_o.double())
    for one, true in zip(found, wide, strict=True):
        near(one, true.grad, 2 * rounding)
    graph.execute(pack, workspace, handle)
    assert all(torch.equal(one, other) for one, other in zip(found, first, strict=True))


def test_padding(handle):
    q, k, v = drawn(B, HQ, SQ, D), drawn(B, HK, SKV, D), drawn(B, HK, SKV, D)
    lengths = [torch.tensor(x, device=DEVICE, dtype=torch.int32).reshape(B, 1, 1, 1) for x in ([SQ, 17], [0, 150])]
    k[1, :, 150:], v[1, :, 150:] = math.nan, math.inf
    graph = graph_of(handle)
    tensors = [graph.tensor_like(x) for x in (q, k, v, *lengths)]
    o, stats = graph.sdpa(*tensors[:3], attn_scale=0.125, generate_stats=True, use_padding_mask=True, seq_len_q=tensors[3],
                          seq_len_kv=tensors[4])
    out, lse = torch.full_like(q, math.nan), torch.full((B, HQ, SQ, 1), math.nan, device=DEVICE)
    o.set_output(True).set_dim(out.shape).set_stride(out.stride())
    stats.set_output(True).set_data_type(FLOAT)
    workspace = built(graph)
    graph.execute(dict(zip((*tensors, o, stats), (q, k, v, *lengths, out, lse), strict=True)), workspace, handle)
    hidden = (torch.arange(SQ, device=DEVICE)[:, None] >= lengths[0]) | (torch.arange(SKV, device=DEVICE) >= lengths[1])
    truth, true_lse = attention(q, *(x.nan_to_num(0, 0, 0) for x in (k, v)), 0.125, hidden)
    near(out, truth)
    near(lse, true_lse, 1e-4)


def test_wrong_packs_launch_nothing(handle):
    q, k, v = drawn(1, 2, 64, D), drawn(1, 2, 64, D), drawn(1, 2, 64, D)
    graph, workspace, pack = forward(handle, q, k, v)
    for uid, value, sentence in ((0, None, "missing a buffer for tensor uid 0"), (1, k.float(), "array of FLOAT, expected HALF"),
                                 (2, v[:, :1].clone(), "bytes, expected"),
                                 (2, v[:, :1, :1].clone().expand(1, 2, 64, D), "bytes, expected")):
        with pytest.raises(ValueError, match=sentence):
            graph.execute(pack | {uid: value}, workspace, handle)
    if graph.get_workspace_size():
        with pytest.raises(ValueError, match=r"The workspace has|lies on"):
            graph.execute(pack, workspace[:0].clone() if DEVICE == "cpu" else workspace.cpu(), handle)
    assert pack[3].isnan().all() and pack[4].isnan().all()


@pytest.mark.skipif(DEVICE == "cpu", reason="is of two devices")
def test_arrays_of_the_cpu_run_there(handle):
    q, k, v = (drawn(1, 2, 64, D, dtype=torch.float32) for _ in range(3))
    graph, workspace, pack = forward(handle, q, k, v)
    here = {uid: value.cpu() for uid, value in pack.items() if uid is not None}
    graph.execute(here, workspace, handle)
    near(here[3].to(DEVICE), attention(q, k, v, 0.125)[0], 1e-5)
    with pytest.raises(ValueError, match="lies on the device"):
        graph.execute(pack | {0: here[0]}, workspace, handle)


@pytest.mark.skipif(DEVICE == "cpu", reason="is of a GPU's queues")
def test_another_stream_and_a_capture(handle):
    q, k, v = drawn(1, 2, 64, D), drawn(1, 2, 64, D), drawn(1, 2, 64, D)
    graph, workspace, pack = forward(handle, q, k, v)
    own, captured = cudnn.create_handle(), torch.cuda.CUDAGraph()
    graph.execute(pack, workspace, own)
    torch.cuda.synchronize()
    with torch.cuda.graph(captured):
        cudnn.set_stream(handle=own, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(pack, workspace, own)
    for _ in range(2):
        q.copy_(torch.randn_like(q))
        pack[3].fill_(math.nan)
        captured.replay()
        near(pack[3], attention(q, k, v, 0.125)[0])


@pytest.mark.skipif(DEVICE == "cpu", reason="is of a GPU's queues")
def test_a_cuda_graph_of_ones_own(handle):
    driver, made = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    graph, workspace, pack = forward(handle, *(drawn(1, 2, 300, D) for _ in range(3)))
    assert driver.cuGraphCreate(ctypes.byref(made), 0) == 0
    graph.populate_cuda_graph(handle, pack, workspace, made.value)
    torch.cuda.synchronize()
    assert pack[3].isnan().all()  # nothing has run
    other, fresh = {uid: torch.randn_like(x) for uid, x in pack.items() if uid is not None}, torch.empty_like(workspace)
    for arrays in (pack, other):
        if arrays is other:
            graph.update_cuda_graph(handle, other, fresh, made.value)
        executable, stream = ctypes.c_void_p(), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), made, ctypes.c_ulonglong(0)) == 0
        assert driver.cuGraphLaunch(executable, stream) == 0
        torch.cuda.synchronize()
        truth, lse = attention(*(arrays[uid] for uid in range(3)), 0.125)
        near(arrays[3], truth)
        near(arrays[4], lse, 1e-4)
    with pytest.raises(ValueError, match="missing a buffer for tensor uid 0"):
        graph.populate_cuda_graph(handle, {}, workspace, made.value)


def test_graph_with_torch_tensors(handle):
    q, k, v = drawn(1, 4, 64, D), drawn(1, 4, 64, D), drawn(1, 4, 64, D)
    with cudnn.Graph(io_data_type=torch.float16, intermediate_data_type=torch.float32, compute_data_type=torch.float32,
                     inputs=["sdpa::q", "sdpa::k", "sdpa::v"], outputs=["sdpa::O", "sdpa::Stats"], handle=handle) as graph:
        o, stats = graph.sdpa(q=q.requires_grad_(), k=k, v=v, attn_scale=0.125, generate_stats=True, use_causal_mask=True,
                              name="sdpa")
        o.set_output(True)
        stats.set_output(True).set_data_type(torch.float32)
    o, stats = graph(q, k, v, handle=handle)
    truth, lse = attention(q.detach(), k, v, 0.125, causal(64, 64))
    near(o, truth)
    near(stats, lse, 1e-4)
    made = graph({"sdpa::q": q, "sdpa::k": k, "sdpa::v": v}, handle=handle)
    assert torch.equal(made["sdpa::O"], o)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("options", [{}, {"is_causal": True, "scale": 0.2}, {
    "enable_gqa": True, "diagonal_alignment": 1, "right_bound": 3, "left_bound": 40}])
def test_operator_of_torch(options, compiled):
    from heddle.cudnn.experimental.ops.sdpa import _bprop_cache, _fprop_cache, scaled_dot_product_attention

    if compiled and DEVICE == "cpu":
        pytest.skip("torch.compile wants a compiler.")
    hk = HK if options.get("enable_gqa") else HQ
    q, k, v = (drawn(B, h, n, D).requires_grad_() for h, n in ((HQ, SQ), (hk, SKV), (hk, SKV)))
    row, column = torch.arange(SQ, device=DEVICE)[:, None], torch.arange(SKV, device=DEVICE)
    shift = SKV - SQ if options.get("diagonal_alignment") else 0
    right, left = options.get("right_bound", 0 if options.get("is_causal") else SKV), options.get("left_bound", 2 * SKV)
    hidden = (column > row + shift + right) | (column <= row + shift - left)
    op = torch.compile(scaled_dot_product_attention) if compiled else scaled_dot_product_attention
    d_o = drawn(B, HQ, SQ, D)
    op(q, k, v, **options).backward(d_o)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    truth, _ = attention(*wide, options.get("scale", D**-0.5), hidden)
    truth.backward(d_o.double())
    near(op(q, k, v, **options).detach(), truth.detach())
    for one, true in zip((q, k, v), wide, strict=True):
        near(one.grad, true.grad, 2e-3)
    kept = len(_fprop_cache), len(_bprop_cache)
    op(q, k, v, **options).backward(d_o)
    assert kept == (len(_fprop_cache), len(_bprop_cache))


def test_operator_of_torch_on_packed_sequences():
    from heddle.cudnn.experimental.ops.sdpa import scaled_dot_product_attention

    lengths = [torch.tensor(x, device=DEVICE, dtype=torch.int32).reshape(2, 1, 1, 1) for x in ([30, 100], [128, 60])]
    starts = [torch.nn.functional.pad(x.flatten().cumsum(0), (1, 0)).to(torch.int32) for x in lengths]
    q, k, v = (drawn(2, HQ, 128, D).requires_grad_() for _ in range(3))
    offsets = [(x * HQ * D).to(torch.int32).reshape(3, 1, 1, 1) for x in starts]
    o = scaled_dot_product_attention(q, k, v, is_causal=True, seq_len_q=lengths[0], seq_len_kv=lengths[1],
                                     cumulative_seq_len_q=offsets[0], cumulative_seq_len_kv=offsets[1])
    d_o = drawn(2, HQ, 128, D)
    o.backward(d_o)

    def rows(x):
        return x.transpose(1, 2).reshape(-1, HQ, D)

    for b in range(2):
        at, to = (slice(x[b].item(), x[b + 1].item()) for x in starts)
        wide = [rows(x.detach())[place].transpose(0, 1)[None].double().requires_grad_()
                for x, place in ((q, at), (k, to), (v, to))]
        truth, _ = attention(*wide, D**-0.5, causal(wide[0].shape[2], wide[1].shape[2]))
        truth.backward(rows(d_o)[at].transpose(0, 1)[None].double())
        near(rows(o.detach())[at].transpose(0, 1)[None], truth.detach())
        for x, true, place in zip((q, k, v), wide, (at, to, to)):
            near(rows(x.grad)[place].transpose(0, 1)[None], true.grad, 2e-3)


def test_host_time_of_a_call(handle):
    """Of the host, on a built graph with a pack of torch tensors. Measured, not asserted: what else the host does is in it."""
    q, k, v = drawn(1, 2, 64, D), drawn(1, 2, 64, D), drawn(1, 2, 64, D)
    graph, workspace, pack = forward(handle, q, k, v)
    if DEVICE == "cpu":
        graph._bound.run = lambda *_: None  # of the binding alone

    def calls(count):
        for _ in range(count):
            graph.execute(pack, workspace, handle)

    best = math.inf
    for _ in range(20):
        calls(20)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        calls(50)  # fewer than a queue holds
        best = min(best, (time.perf_counter() - start) / 50)
    print(f"{best * 1e6:.2f} us of the host a call")
