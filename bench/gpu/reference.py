"""What a cell computes, operation by operation in a given type: in f64 the truth, in the cell's own type what an error
is held against. One batch entry and one key head with its query heads at a time, a chunk of query rows after the other."""

import math

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


def sequence(cell, tensor, batch, heads=slice(None)):
    """Rows of a batch entry in heads (one or some) of Q, K, V, O, their gradients or the statistics: [..., row, column]."""
    length = cell.length_of(batch)
    if cell.packed and tensor.dim() == 3:
        first = sum(cell.lengths[:batch])
        return tensor.transpose(0, 1)[heads, first:first + length]
    return tensor[batch][heads][..., :length, :]


def philox_keeps(tensors, probability, streams, rows, columns):
    """Which weights dropout keeps: src/core/dropout_bits.h."""
    low = 0xFFFFFFFF
    seed, offset = (int(tensors[name]) for name in ("seed", "offset"))
    key = [seed & low, (seed >> 32 ^ offset >> 32) & low]
    column = torch.arange(columns, device="cuda")
    counter = list(torch.broadcast_tensors(column // 16 * 4 + column % 8 // 2, (rows // 16 * 8 + rows % 8)[:, None],
                                           streams[:, None, None], torch.tensor(offset & low, device="cuda")))
    for _ in range(7):
        # 64-bit products of 32-bit numbers; what is above the sign does not matter to either half.
        products = [factor * counter[n] for factor, n in ((0xD2511F53, 0), (0xCD9E8D57, 2))]
        (a_high, a), (b_high, b) = ((product >> 32 & low, product & low) for product in products)
        counter = [b_high ^ counter[1] ^ key[0], b, a_high ^ counter[3] ^ key[1], a]
        key = [(word + step) & low for word, step in zip(key, (0x9E3779B9, 0xBB67AE85))]
    words = [torch.where(rows[:, None] // 8 % 2 == 0, counter[n], counter[n + 1]) for n in (0, 2)]
    bits = torch.where(column // 8 % 2 == 0, *words) >> column % 2 * 16 & 0x7FFF
    rare = max(1, math.floor(min(probability, 1 - probability) * 2**15 + 0.5))
    return (bits < rare) == (probability > 0.5)


def _scores(cell, q, k, slopes, bias, mask, first_row):
    s = (q @ k.transpose(-1, -2)) * cell.dim**-0.5
    row = torch.arange(first_row, first_row + s.shape[-2], device="cuda")[:, None]
    column = torch.arange(s.shape[-1], device="cuda")[None, :]
    if cell.score == "soft_cap":
        s = SOFT_CAP * torch.tanh(s / SOFT_CAP)
    if cell.score == "alibi":
        s = s + slopes.to(s.dtype)[:, None, None] * (column - row)
    if cell.bias:
        s = s + bias
    if cell.mask:
        s = s.masked_fill(~mask, float("-inf"))
    if cell.causal:
        hidden = column > row
        if cell.window:
            hidden |= column <= row - cell.window
        s = s.masked_fill(hidden, float("-inf"))
    return s


def attention(cell, tensors, batch, group, dtype):
    """{"o": ...} of the query heads of key head `group`, or {"d_q", "d_k", "d_v"} if the cell is a backward (and "d_bias", the
    batch entry's part of it)."""
    share = cell.heads // cell.groups
    heads = slice(group * share, (group + 1) * share)
    q = sequence(cell, tensors["q"], batch, heads).to(dtype)
    k, v = (sequence(cell, tensors[name], batch, group).to(dtype) for name in ("k", "v"))
    length = cell.length_of(batch)
    if cell.rope:
        q, k = (rotate(x, tensors["cosines"], tensors["sines"]) for x in (q, k))
    slopes = alibi_slopes(cell.heads)[heads] if cell.score == "alibi" else None
    streams = torch.arange(cell.heads, device="cuda")[heads] + batch * cell.heads
    rows = max(64, CHUNK_SCORES // (share * length))
    parts, d_bias, d_k, d_v = [], [], torch.zeros_like(k, dtype=torch.float64), torch.zeros_like(v, dtype=torch.float64)
    for first in range(0, length, rows):
        here = slice(first, min(length, first + rows))
        some = [x.detach().requires_grad_(cell.backward) for x in (q[:, here], k, v)]
        bias = tensors["bias"][0, heads, here].to(dtype).detach() if cell.bias else None
        if cell.bias_gradient:
            some.append(bias.requires_grad_())
        mask = tensors["mask"][0, 0, here] if cell.mask else None
        with torch.set_grad_enabled(cell.backward):
            p = _scores(cell, some[0], some[1], slopes, bias, mask, first).softmax(-1)
            if cell.dropout:
                keeps = philox_keeps(tensors, cell.dropout, streams, torch.arange(first, here.stop, device="cuda"), length)
                p = torch.where(keeps, p / (1 - cell.dropout), 0)
            o = p @ some[2]
        if cell.backward:
            gradients = torch.autograd.grad(o, some, sequence(cell, tensors["d_o"], batch, heads)[:, here].to(dtype))
            parts.append(gradients[0])
            d_k += gradients[1]
            d_v += gradients[2]
            d_bias += gradients[3:]
        else:
            parts.append(o)
    whole = torch.cat(parts, 1)
    if not cell.backward:
        return {"o": whole}
    gradients = {"d_q": whole, "d_k": d_k.to(dtype), "d_v": d_v.to(dtype)}
    return gradients | {"d_bias": torch.cat(d_bias, 1)} if cell.bias_gradient else gradients


def attention_error(cell, tensors, outputs):
    """The largest error of any output over that of the naive computation, for one (batch, key head) drawn by lot; for the
    gradient of a bias, which is a sum over the batch, for one head."""
    batch, group = (int(torch.randint(n, ())) for n in (cell.batch, cell.groups))
    own = torch.float32 if cell.dtype == "f32" else torch.bfloat16
    truth, naive = (attention(cell, tensors, batch, group, dtype) for dtype in (torch.float64, own))
    share = cell.heads // cell.groups
    query_heads = slice(group * share, (group + 1) * share)
    ratios = {}
    if cell.bias_gradient:
        for result, dtype in ((truth, torch.float64), (naive, own)):
            others = (attention(cell, tensors, n, group, dtype)["d_bias"] for n in range(cell.batch) if n != batch)
            result["d_bias"] = sum(others, result["d_bias"].double()).to(dtype)
        want = truth.pop("d_bias")
        ratios["d_bias"] = relative_error(outputs["d_bias"][0, query_heads], want) / relative_error(naive["d_bias"], want)
    for name, want in truth.items():
        got = sequence(cell, outputs[name], batch, group if name in ("d_k", "d_v") else query_heads)
        ratios[name] = relative_error(got, want) / relative_error(naive[name], want)
    return max(ratios.values())


def row_statistics(x, centred):
    """Of each row in f64: its mean (0 of RMSNorm), and 1 / the root of what numbers less that have for a mean square."""
    x = x.double()
    mean = x.mean(-1) if centred else torch.zeros_like(x[:, 0])
    return mean, ((x - mean[:, None]).square().mean(-1) + 1e-6).rsqrt()


def streaming_error(cell, tensors, outputs):
    """The same for norms and RoPE: on some rows or heads, weight gradients on all."""
    if cell.op == "rope":
        x = tensors["x"][:1, :2]
        want = rotate(x.double(), tensors["cosines"], tensors["sines"])
        return relative_error(outputs["y"][:1, :2], want) / relative_error(want.bfloat16(), want)
    few = slice(0, 256)
    weight, centred = tensors["weight"].double(), cell.op.startswith("layer_norm")
    if not cell.op.endswith("_backward"):
        mean, inverse = row_statistics(tensors["x"][few], centred)
        want = (tensors["x"][few].double() - mean[:, None]) * inverse[:, None] * weight
        if centred:
            want += tensors["bias"].double()
        return relative_error(outputs["y"][few], want) / relative_error(want.bfloat16(), want)
    d_weight, d_bias = torch.zeros_like(weight), torch.zeros_like(weight)
    for first in range(0, cell.dims[0], 2048):
        rows = slice(first, first + 2048)
        x, dy = (tensors[name][rows].double() for name in ("x", "dy"))
        inverse = tensors["inv_variance"][rows, None].double()
        hat = (x - tensors["mean"][rows, None].double() if centred else x) * inverse
        d_weight += (dy * hat).sum(0)
        d_bias += dy.sum(0)
        if first == 0:
            g = dy * weight
            along = hat * (g * hat).mean(-1, keepdim=True)
            d_x = (inverse * (g - along - (g.mean(-1, keepdim=True) if centred else 0)))[few]
    pairs = [(outputs["dx"][few], d_x), (outputs["d_weight"], d_weight)]
    if centred:
        pairs.append((outputs["d_bias"], d_bias))
    return max(relative_error(got, want) / relative_error(want.bfloat16(), want) for got, want in pairs)
