"""Scaled dot-product attention of arrays as one fused call, linear in memory.

Vaswani et al., "Attention Is All You Need", 2017; Dao, "FlashAttention-2", 2023.
"""

import math

from heddle import _checks
from heddle.arrays import _attention_graph, _calls, _new
from heddle.arrays._attention_graph import OP
from heddle.arrays._calls import Inputs, Kind, kept

_WORDS = ("seed", "offset")


def attention(q: object, k: object, v: object, *, bias: object = None, mask: object = None, causal: bool | str = False,
              window: int | tuple[int | None, int | None] | None = None, scale: float | None = None,
              soft_cap: float | None = None, dropout: tuple | None = None, sink: object = None, q_lengths: object = None,
              kv_lengths: object = None, segment_ids: object = None, return_lse: bool = False, deterministic: bool = False,
              layout: str = "BTNH") -> object:
    """softmax(scale * q k^T + bias, masked) v, without the matrix of scores in memory.

    B batch, T queries, S keys, N heads of q, K heads of k and v (N a multiple of K; query head n uses head n // (N/K)),
    H and D head dims. A score goes through scale, soft_cap, bias and then every mask; a query that sees no key gives 0.

    Args:
      q: `[B, T, N, H]` or `[T, N, H]`; float64 (on a CPU), float32, float16 or bfloat16. With layout
        "BNTH" heads come before lengths, in q, k, v and the result. Arrays are NumPy's, CuPy's, or of any library with
        DLPack on the host; of torch and JAX they are served by `heddle.torch` and `heddle.jax`, with gradients.
      k: `[B, S, K, H]`, q's dtype.
      v: `[B, S, K, D]`, q's dtype.
      bias: float32, float16 or bfloat16, float64 too beside such a q; broadcasts to `[B, N, T, S]`; added.
      mask: bool, broadcasts to `[B, N, T, S]`; True keeps. Never repeated in memory.
      causal: True or "top_left": query i sees keys up to i. "bottom_right": up to i + S - T, or with lengths up to
        i + kv_length - q_length.
      window: query i sees keys i - left to i + right (both shifted as causal is); a single int is both, None is no limit.
      scale: a number; default 1/sqrt(H).
      soft_cap: c makes of a score x c * tanh(x / c); from 1e-30 to 1e30.
      dropout: (probability, seed) or (probability, seed, offset): each weight is dropped with that probability, the rest
        scaled by 1/(1 - probability). seed and offset are integers.
      sink: `[N]`, one more logit in each row's denominator, without a value.
      q_lengths, kv_lengths: int32 or int64 `[B]`; rows from the length on are absent. What k and v hold there never leaks.
      segment_ids: int32 or int64 of `[B, T]` (T = S), or a pair of `[B, T]` and `[B, S]`; a query sees the keys of its own
        id. Ids up to 2^24: others are refused, on a GPU not looked at.
      return_lse: also return each row's log-sum-exp of scores, sink included, natural logarithm.
      deterministic: equal arguments give equal bits in gradients too.
      layout: "BTNH" or "BNTH".

    Returns:
      `[B, T, N, D]` in q's dtype (as the layout says; without B if q has none), of q's library and on its device, and with
      return_lse also `[B, N, T]`, float32, or float64 of such a q. On a GPU the work is queued on the library's current stream.

    Raises:
      TypeError: an argument is no array or has another dtype.
      ValueError: shapes or devices do not go together, a value is outside what is allowed, or no engine runs the call.
    """
    named = {"bias": bias, "mask": mask, "sink": sink, "q_lengths": q_lengths, "kv_lengths": kv_lengths}
    options = {"causal": causal, "window": tuple(window) if isinstance(window, list) else window, "scale": scale,
               "soft_cap": soft_cap, "deterministic": deterministic, "return_lse": return_lse, "layout": layout}
    module = _calls.own_ops(_calls.library_of(q))
    if module is not None:
        return module.attention(q, k, v, **named, **options, dropout=dropout, segment_ids=segment_ids)
    arrays = {"q": q, "k": k, "v": v, **{name: array for name, array in named.items() if array is not None}}
    if segment_ids is not None:
        arrays["q_segments"], arrays["kv_segments"] = _attention_graph.split_segments(segment_ids)
    probability, *words = _attention_graph.split_dropout(dropout)
    inputs, call = _prepared(_calls.described(OP, arrays), probability, *options.values())
    if probability:
        arrays |= {name: inputs.library.full((), _checks.whole(f"{OP}: dropout's {name}", word), "int64")
                   for name, word in zip(_WORDS, words, strict=True)}
    if segment_ids is not None and inputs.device == "cpu":
        for name in _attention_graph.SEGMENTS:
            ids = _new.dense(f"{OP}: {name}", arrays[name])
            if ids.size:
                _attention_graph.check_ids(int(ids.min()), int(ids.max()))
    found = _of_nothing(inputs, arrays, call) if call.ready is None else _of_plan(inputs, arrays, call)
    return found[0] if len(found) == 1 else tuple(found)


def _of_plan(inputs, arrays, call):
    operands = [*(inputs.copied(arrays) if inputs.copies else arrays).values()]
    if call.full_lengths:
        place = len(inputs.kinds)
        operands[place:place] = [inputs.library.full(call.batch, length, "int32") for length in call.full_lengths]
    return inputs.run(call.ready, operands, call.results)


def _of_nothing(inputs, arrays, call):
    """Of keys that are not there, O is 0 and the log-sum-exp that of the sink alone, in rows that are there."""
    found = inputs.made(arrays["q"], call.results)
    found[0][...] = 0
    if len(found) > 1:
        lse, arrays = found[1], inputs.copied(arrays)
        lse[...] = arrays["sink"][:, None] if "sink" in arrays else -math.inf
        for entry, length in zip(lse if lse.ndim == 3 else [lse], arrays["q_lengths"] if "q_lengths" in arrays else ()):
            entry[:, max(int(length), 0):] = -math.inf
    return found


@kept(_calls.KEPT)
def _prepared(given, probability, causal, window, scale, soft_cap, deterministic, return_lse, layout):
    _calls.one_of(OP, "layout", layout, _attention_graph.LAYOUTS)
    wanted = ("lse",) if _calls.flag(_attention_graph.OP, "return_lse", return_lse) else ()
    inputs = Inputs(OP, given, _attention_graph.LAID, _attention_graph.READ_AS)
    dims = inputs.kinds["q"].dims
    config = _attention_graph.config(dims[-1] if dims else 1, causal=causal, window=window, scale=scale, soft_cap=soft_cap,
                                     probability=probability, deterministic=deterministic)
    words = dict.fromkeys(_WORDS, Kind.dense("i64", ())) if config.dropout else {}
    return inputs, _attention_graph.forward_call(inputs.device, inputs.kinds | words, config, layout, wanted)
