"""What a cell computes, operation by operation in a given type: in f64 the truth, in the cell's own type what an error
is held against. One batch entry and one key head with its query heads at a time, a chunk of query rows after the other."""

import torch

from cells import SOFT_CAP

CHUNK_SCORES = 1 << 26


def relative_error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def rotate(x, cosines, sines):
    """RoPE of halves: in f32 at least, rounded to x's type."""
    wide = x if x.dtype == torch.float64 else x.float()
    cos, sin = cosines.to(wide.dtype), sines.to(wide.dtype)
    a, b = wide.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def alibi_slopes(heads):
    """For a power of two of heads."""
    return torch.exp2(-8.0 / heads * torch.arange(1, heads + 1, device="cuda", dtype=torch.float64))


def _scores(cell, q, k, slopes, first_row):
    s = (q @ k.transpose(-1, -2)) * cell.dim**-0.5
    row = torch.arange(first_row, first_row + s.shape[-2], device="cuda")[:, None]
    column = torch.arange(s.shape[-1], device="cuda")[None, :]
    if cell.score == "soft_cap":
        s = SOFT_CAP * torch.tanh(s / SOFT_CAP)
    if cell.score == "alibi":
        s = s + slopes.to(s.dtype)[:, None, None] * (column - row)
    if cell.causal:
        hidden = column > row
        if cell.window:
            hidden |= column <= row - cell.window
        s = s.masked_fill(hidden, float("-inf"))
    return s


def attention(cell, tensors, batch, group, dtype):
    """{"o": ...} of the query heads of key head `group`, or {"d_q", "d_k", "d_v"} if the cell is a backward."""
    share = cell.heads // cell.groups
    heads = slice(group * share, (group + 1) * share)
    q, k, v = tensors["q"][batch, heads].to(dtype), tensors["k"][batch, group].to(dtype), tensors["v"][batch, group].to(dtype)
    if cell.rope:
        q, k = (rotate(x, tensors["cosines"], tensors["sines"]) for x in (q, k))
    slopes = alibi_slopes(cell.heads)[heads] if cell.score == "alibi" else None
    rows = max(64, CHUNK_SCORES // (share * cell.length))
    parts, d_k, d_v = [], torch.zeros_like(k, dtype=torch.float64), torch.zeros_like(v, dtype=torch.float64)
    for first in range(0, cell.length, rows):
        some = [x.detach().requires_grad_(cell.backward) for x in (q[:, first:first + rows], k, v)]
        with torch.set_grad_enabled(cell.backward):
            o = _scores(cell, some[0], some[1], slopes, first).softmax(-1) @ some[2]
        if cell.backward:
            d_o = tensors["d_o"][batch, heads, first:first + rows].to(dtype)
            gradients = torch.autograd.grad(o, some, d_o)
            parts.append(gradients[0])
            d_k += gradients[1]
            d_v += gradients[2]
        else:
            parts.append(o)
    whole = torch.cat(parts, 1)
    return {"d_q": whole, "d_k": d_k.to(dtype), "d_v": d_v.to(dtype)} if cell.backward else {"o": whole}


def attention_error(cell, tensors, outputs):
    """The largest error of any output over that of the naive computation, for one (batch, key head) drawn by lot."""
    batch, group = (int(torch.randint(n, ())) for n in (cell.batch, cell.groups))
    own = torch.float32 if cell.dtype == "f32" else torch.bfloat16
    truth, naive = (attention(cell, tensors, batch, group, dtype) for dtype in (torch.float64, own))
    share = cell.heads // cell.groups
    worst = 0.0
    for name, want in truth.items():
        heads = group if name in ("d_k", "d_v") else slice(group * share, (group + 1) * share)
        worst = max(worst, relative_error(outputs[name][batch, heads], want) / relative_error(naive[name], want))
    return worst


def streaming_error(cell, tensors, outputs):
    """The same for RMSNorm and RoPE: on some rows or heads, weight gradients on all."""
    if cell.op == "rope":
        x = tensors["x"][:1, :2]
        want = rotate(x.double(), tensors["cosines"], tensors["sines"])
        return relative_error(outputs["y"][:1, :2], want) / relative_error(want.bfloat16(), want)
    few = slice(0, 256)
    weight = tensors["weight"].double()
    if cell.op == "rms_norm":
        x = tensors["x"][few].double()
        want = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight
        return relative_error(outputs["y"][few], want) / relative_error(want.bfloat16(), want)
    d_weight = torch.zeros_like(weight)
    for first in range(0, cell.dims[0], 2048):
        x, dy = (tensors[name][first:first + 2048].double() for name in ("x", "dy"))
        inverse = tensors["inv_variance"][first:first + 2048, None].double()
        d_weight += (dy * x * inverse).sum(0)
        if first == 0:
            g, hat = dy * weight, x * inverse
            d_x = (inverse * (g - hat * (g * hat).mean(-1, keepdim=True)))[few]
    return max(relative_error(got, want) / relative_error(want.bfloat16(), want)
               for got, want in ((outputs["dx"][few], d_x), (outputs["d_weight"], d_weight)))
