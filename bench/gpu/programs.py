"""A cell's programs on the same tensors: Heddle through its library, and its peers through torch."""

import dataclasses

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import rms_norm, scaled_dot_product_attention

import graphs
from cells import SOFT_CAP, Streaming
from heddle import Plan
from reference import alibi_slopes, attention_error, rotate, streaming_error

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}


def graph_texts(cell):
    """What has to be planned before the cell is measured: its graphs by the name of the program."""
    if isinstance(cell, Streaming):
        return {"heddle": graphs.streaming(cell)}
    texts = {"heddle": graphs.attention(cell, cell.backward)}
    if cell.backward:
        texts["forward"] = graphs.attention(cell, False)
    if "unrotated" in cell.peers:
        texts["unrotated"] = graphs.attention(dataclasses.replace(cell, rope=False), cell.backward)
    if "unordered" in cell.peers:
        texts["unordered"] = graphs.attention(dataclasses.replace(cell, deterministic=False), cell.backward)
    return texts


def make_tensors(cell):
    """The cell's inputs and its outputs, these full of NaN, by their names in the graph."""
    def normal(*dims, dtype=torch.float32 if getattr(cell, "dtype", "") == "f32" else torch.bfloat16):
        return torch.randn(dims, device="cuda").to(dtype)

    def unwritten(like, dtype=None):
        return torch.full_like(like, float("nan"), dtype=dtype)

    if isinstance(cell, Streaming):
        x = normal(*cell.dims)
        if cell.op == "rope":
            return {"x": x, "y": unwritten(x), **_tables(cell.dims[2], cell.dims[3])}
        tensors = {"x": x, "weight": normal(cell.dims[1])}
        if cell.op == "rms_norm":
            return tensors | {"y": unwritten(x), "inv_variance": unwritten(x[:, 0], torch.float32)}
        inverse = torch.cat([(some.double().square().mean(-1) + 1e-6).rsqrt().float() for some in x.split(2048)])
        return tensors | {"inv_variance": inverse, "dy": normal(*cell.dims), "dx": unwritten(x),
                          "d_weight": unwritten(tensors["weight"])}
    q = normal(cell.batch, cell.heads, cell.length, cell.dim)
    k, v = (normal(cell.batch, cell.groups, cell.length, cell.dim) for _ in range(2))
    tensors = {"q": q, "k": k, "v": v, "o": unwritten(q), "stats": unwritten(q[..., :1].contiguous(), torch.float32)}
    if cell.rope:
        tensors |= _tables(cell.length, cell.dim)
    if cell.backward:
        tensors |= {"d_o": normal(*q.shape), "d_q": unwritten(q), "d_k": unwritten(k), "d_v": unwritten(v)}
    return tensors


def _tables(length, dim):
    frequencies = 10000.0 ** (-torch.arange(dim // 2, device="cuda", dtype=torch.float64) / (dim // 2))
    angles = torch.arange(length, device="cuda", dtype=torch.float64)[:, None] * frequencies
    return {"cosines": angles.cos().float(), "sines": angles.sin().float()}


def heddle_program(plan, tensors):
    """A function that queues the plan on torch's stream."""
    names = {uid: name for name, uid in graphs.UIDS.items()}
    addresses = {uid: tensors[names[uid]].data_ptr() for uid in (*plan.inputs, *plan.outputs)}
    workspace = torch.empty(max(plan.workspace_bytes, 1), device="cuda", dtype=torch.uint8)

    def run():
        plan.execute(addresses, workspace.data_ptr(), torch.cuda.current_stream().cuda_stream)

    return run


def check(cell, run, plan, tensors):
    """Runs it; its error over the naive computation's. Raises ArithmeticError if that is above 2 or outputs are amiss."""
    outputs = {name: tensors[name] for name, uid in graphs.UIDS.items() if uid in plan.outputs}
    run()
    torch.cuda.synchronize()
    for name, output in outputs.items():
        if not output.isfinite().all():
            raise ArithmeticError(f"{name} is not finite everywhere")
    error = (streaming_error if isinstance(cell, Streaming) else attention_error)(cell, tensors, outputs)
    if not error <= 2:
        raise ArithmeticError(f"the error is {error:.2f} times that of the naive computation")
    if getattr(cell, "deterministic", False):
        before = {name: output.clone() for name, output in outputs.items()}
        run()
        if not all(torch.equal(before[name], output) for name, output in outputs.items()):
            raise ArithmeticError("two runs differ")
    return error


def peer_program(who, cell, tensors):
    """A function that runs a peer once. Raises RuntimeError if the peer refuses the cell."""
    if isinstance(cell, Streaming):
        return _streaming_peer(who, cell, tensors)
    q, k, v = (tensors[name].detach().requires_grad_(cell.backward) for name in ("q", "k", "v"))
    grouped = cell.groups != cell.heads
    if who == "flex":
        forward = _flex(cell, q, k, v)
    elif who == "compiled_cudnn":
        cos, sin = (tensors[name].repeat(1, 2) for name in ("cosines", "sines"))
        turn = torch.compile(_rotate_by_halves, dynamic=False)

        def forward():
            turned = turn(q, cos, sin), turn(k, cos, sin)
            with sdpa_kernel(BACKENDS["cudnn"]):
                return scaled_dot_product_attention(*turned, v, is_causal=cell.causal, enable_gqa=grouped)
    else:
        def forward():
            with sdpa_kernel(BACKENDS[who]):
                return scaled_dot_product_attention(q, k, v, is_causal=cell.causal, enable_gqa=grouped)
    if not cell.backward:
        return forward
    o = forward()
    return lambda: torch.autograd.grad(o, (q, k, v), tensors["d_o"], retain_graph=True)


def _rotate_by_halves(x, cos, sin):
    a, b = x.chunk(2, -1)
    return (x * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)


def _flex(cell, q, k, v):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    window = cell.window or cell.length
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < window), None, None, cell.length, cell.length,
                             device="cuda")
    score = None
    if cell.score == "soft_cap":
        score = lambda s, b, h, i, j: SOFT_CAP * torch.tanh(s / SOFT_CAP)
    if cell.score == "alibi":
        slopes = alibi_slopes(cell.heads).float()
        score = lambda s, b, h, i, j: s + slopes[h] * (j - i)
    flex = torch.compile(flex_attention, dynamic=False)
    return lambda: flex(q, k, v, score_mod=score, block_mask=mask)


def _streaming_peer(who, cell, tensors):
    compiled = torch.compile if who == "compiled" else lambda function, dynamic: function
    if cell.op == "rope":
        turn = compiled(rotate, dynamic=False)
        return lambda: turn(tensors["x"], tensors["cosines"], tensors["sines"])
    x, weight = (tensors[name].detach().requires_grad_(cell.op == "rms_norm_backward") for name in ("x", "weight"))
    norm = compiled(lambda x, weight: rms_norm(x, weight.shape, weight, 1e-6), dynamic=False)
    if cell.op == "rms_norm":
        return lambda: norm(x, weight)
    y = norm(x, weight)
    return lambda: torch.autograd.grad(y, (x, weight), tensors["dy"], retain_graph=True)
