"""A cell's programs on the same tensors: Heddle through its library, and its peers through torch."""

import dataclasses

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import layer_norm, rms_norm, scaled_dot_product_attention

import graphs
from cells import SOFT_CAP, Streaming
from heddle import Plan
from reference import alibi_slopes, attention_error, rotate, row_statistics, sequence, streaming_error

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
    if "joined" in cell.peers:
        joined = dataclasses.replace(cell, apart=False)
        texts["joined"] = graphs.attention(joined, cell.backward)
        if cell.backward:
            texts["forward joined"] = graphs.attention(joined, False)
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
        centred = cell.op.startswith("layer_norm")
        if not cell.op.endswith("_backward"):
            names = ("mean", "inv_variance") if centred else ("inv_variance",)
            bias = {"bias": normal(cell.dims[1])} if centred else {}
            return tensors | bias | {"y": unwritten(x), **{name: unwritten(x[:, 0], torch.float32) for name in names}}
        mean, inverse = (torch.cat(parts).float() for parts in zip(*(row_statistics(some, centred) for some in x.split(2048))))
        more = {"mean": mean, "d_bias": unwritten(tensors["weight"])} if centred else {}
        return tensors | more | {"inv_variance": inverse, "dy": normal(*cell.dims), "dx": unwritten(x),
                                 "d_weight": unwritten(tensors["weight"])}

    def shape(heads, columns):
        return (sum(cell.lengths), heads, columns) if cell.packed else (cell.batch, heads, cell.length, columns)

    q, k, v = (normal(*shape(*of)) for of in ((cell.heads, cell.dim), (cell.groups, cell.dim), (cell.groups, cell.values)))
    tensors = {"q": q, "k": k, "v": v, "o": unwritten(q.new_empty(shape(cell.heads, cell.values)))}
    for name in ("stats", "max", "sum_exp") if cell.apart else ("stats",):
        tensors[name] = torch.full((cell.batch, cell.heads, cell.length, 1), float("nan"), device="cuda")
    if cell.rope:
        tensors |= _tables(cell.length, cell.dim)
    if cell.lengths:
        lengths = torch.tensor(cell.lengths, device="cuda", dtype=torch.int32)
        tensors |= {"lengths": lengths, "ends": torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))}
    if cell.bias:
        tensors["bias"] = normal(1, cell.heads, cell.length, cell.length)
    if cell.bias_gradient:
        tensors["d_bias"] = unwritten(tensors["bias"])
    if cell.mask:
        # Every row sees itself, and of the other keys seven in eight.
        tensors["mask"] = torch.randint(8, (1, 1, cell.length, cell.length), device="cuda", dtype=torch.uint8) > 0
        tensors["mask"].diagonal(dim1=-2, dim2=-1).fill_(True)
    if cell.dropout:
        tensors |= {name: torch.randint(2**31, (1,), device="cuda") for name in ("seed", "offset")}
    if cell.backward:
        tensors |= {"d_o": normal(*tensors["o"].shape), "d_q": unwritten(q), "d_k": unwritten(k), "d_v": unwritten(v)}
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
        parts = [output] if isinstance(cell, Streaming) or name == "d_bias" or not cell.lengths else (
            sequence(cell, output, batch) for batch in range(cell.batch))
        if not all(part.isfinite().all() for part in parts):
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
    wanted = [q, k, v]
    bias = None
    if cell.bias:
        bias = tensors["bias"].detach().requires_grad_(cell.bias_gradient)
        wanted += [bias] * cell.bias_gradient
    grouped = cell.groups != cell.heads
    if who == "flex":
        forward = _flex(cell, tensors, q, k, v, bias)
    elif cell.packed:
        forward = _packed(cell, tensors["ends"], q, k, v)
    elif who == "compiled_cudnn":
        cos, sin = (tensors[name].repeat(1, 2) for name in ("cosines", "sines"))
        turn = torch.compile(_rotate_by_halves, dynamic=False)

        def forward():
            turned = turn(q, cos, sin), turn(k, cos, sin)
            with sdpa_kernel(BACKENDS["cudnn"]):
                return scaled_dot_product_attention(*turned, v, is_causal=cell.causal, enable_gqa=grouped)
    else:
        if cell.mask:
            bias = _as_bias(tensors["mask"])
        elif cell.lengths:
            bias = _as_bias(torch.arange(cell.length, device="cuda") < tensors["lengths"][:, None, None, None])
        if bias is not None:
            bias = bias.expand(cell.batch, cell.heads, cell.length, cell.length)

        def forward():
            with sdpa_kernel(BACKENDS[who]):
                return scaled_dot_product_attention(q, k, v, bias, cell.dropout, cell.causal, enable_gqa=grouped)
    if not cell.backward:
        return forward
    o = forward()
    d_o = tensors["d_o"].transpose(0, 1)[None] if cell.packed and who == "flex" else tensors["d_o"]
    return lambda: torch.autograd.grad(o, wanted, d_o, retain_graph=True)


def _as_bias(shown):
    """What torch makes of a mask of booleans in every call."""
    return torch.zeros_like(shown, dtype=torch.bfloat16).masked_fill_(~shown, float("-inf"))


def _packed(cell, ends, q, k, v):
    """FlashAttention-2, as torch's varlen_attn calls it. (For cuDNN torch builds a graph in every such call: 50 to 100 ms.)"""
    arguments = ends, ends, cell.length, cell.length, 0.0, cell.causal, False
    return lambda: torch.ops.aten._flash_attention_forward(q, k, v, *arguments)[0]


def _rotate_by_halves(x, cos, sin):
    a, b = x.chunk(2, -1)
    return (x * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)


def _flex(cell, tensors, q, k, v, bias):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()  # each cell's is compiled anew, and past some the compiler gives up
    batch, length = (cell.batch if cell.lengths else None), cell.length
    if cell.packed:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        batch, length = None, q.shape[2]
        place = torch.arange(length, device="cuda")
        entry = torch.bucketize(place, tensors["ends"][1:], right=True)
        shown = lambda b, h, i, j: (entry[i] == entry[j]) & (i >= j)
    elif cell.lengths:
        lengths = tensors["lengths"]
        shown = lambda b, h, i, j: (i < lengths[b]) & (j < lengths[b])
    elif cell.causal:
        window = cell.window or length
        shown = lambda b, h, i, j: (i >= j) & (i - j < window)
    else:
        shown = None
    mask = shown and create_block_mask(shown, batch, None, length, length, device="cuda")
    score = None
    if cell.score == "soft_cap":
        score = lambda s, b, h, i, j: SOFT_CAP * torch.tanh(s / SOFT_CAP)
    if cell.score == "alibi":
        slopes = alibi_slopes(cell.heads).float()
        score = lambda s, b, h, i, j: s + slopes[h] * (j - i)
    if cell.bias:
        heads = bias[0]
        score = lambda s, b, h, i, j: s + heads[h, i, j]
    flex = torch.compile(flex_attention, dynamic=False)
    return lambda: flex(q, k, v, score_mod=score, block_mask=mask)


def _streaming_peer(who, cell, tensors):
    compiled = torch.compile if who == "compiled" else lambda function, dynamic: function
    if cell.op == "rope":
        turn = compiled(rotate, dynamic=False)
        return lambda: turn(tensors["x"], tensors["cosines"], tensors["sines"])
    backward, centred = cell.op.endswith("_backward"), cell.op.startswith("layer_norm")
    operands = [tensors["x"], tensors["weight"]]
    if centred:
        operands.append(tensors.get("bias", torch.zeros_like(tensors["weight"])))
    operands = [tensor.detach().requires_grad_(backward) for tensor in operands]
    norm = compiled(lambda x, *columns: (layer_norm if centred else rms_norm)(x, columns[0].shape, *columns, 1e-6),
                    dynamic=False)
    if not backward:
        return lambda: norm(*operands)
    y = norm(*operands)
    return lambda: torch.autograd.grad(y, operands, tensors["dy"], retain_graph=True)
