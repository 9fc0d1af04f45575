"""sdpa and sdpa_backward."""

from collections.abc import Callable, Sequence

from heddle import _checks
from heddle.cudnn._node import Node
from heddle.cudnn._pointwise import score_expression
from heddle.cudnn._tensor import Tensor
from heddle.cudnn._types import as_data_type, attention_implementation, data_type, diagonal_alignment, member_of

_TOP_LEFT, _BOTTOM_RIGHT = diagonal_alignment.TOP_LEFT, diagonal_alignment.BOTTOM_RIGHT


class Attention:
    """Letters: B batch, Hq, Hk, Hv heads, Sq, Skv lengths of queries and keys, D head dims. Hk and Hv divide Hq."""

    def sdpa(self, q: Tensor, k: Tensor, v: Tensor, is_inference: bool | None = None,
             attn_scale: float | Tensor | None = None, bias: Tensor | None = None, block_mask: Tensor | None = None,
             use_alibi_mask: bool = False, use_padding_mask: bool = False, seq_len_q: Tensor | None = None,
             seq_len_kv: Tensor | None = None, use_causal_mask: bool = False, use_causal_mask_bottom_right: bool = False,
             sliding_window_length: int | None = None, diagonal_alignment: diagonal_alignment = _TOP_LEFT,
             diagonal_band_left_bound: int | None = None, diagonal_band_right_bound: int | None = None,
             dropout: Sequence | None = None, rng_dump: Tensor | None = None,
             paged_attention_k_table: Tensor | None = None, paged_attention_v_table: Tensor | None = None,
             paged_attention_max_seq_len_kv: int | None = None, compute_data_type: object = None, name: str = "",
             score_mod: Callable | None = None, generate_stats: bool | None = None,
             implementation: attention_implementation = attention_implementation.AUTO, score_max: Tensor | None = None,
             score_sum_exp: Tensor | None = None, sink_token: Tensor | None = None, unfuse_fma: bool = False,
             cu_seq_len_q: Tensor | None = None, cu_seq_len_kv: Tensor | None = None,
             max_total_seq_len_q: int | None = None, max_total_seq_len_kv: int | None = None,
             stats_use_log2: bool = False, softmax_precision: object = None,
             attn_scale_prefolded: bool = False) -> tuple[Tensor, Tensor | None]:
        """softmax(attn_scale Q K^T, changed and masked) V, and each row's log-sum-exp.

        q [B, Hq, Sq, Dqk], k [B, Hk, Skv, Dqk], v [B, Hv, Skv, Dv], the last stride 1; the result O [B, Hq, Sq, Dv], and
        Stats [B, Hq, Sq, 1], FLOAT, or None. Exactly one of `generate_stats` and `is_inference` has to be said. With
        page tables, [B, 1, pages, 1], k and v hold pages, [pages, H, rows of a page, D].

        dropout: (p, seed, offset), weights kept with probability 1 - p by Philox, or (mask, scale). rng_dump, score_max and
        score_sum_exp are tensors of the caller's that are written. See docs/cudnn.md for the rest.
        """
        name = _checks.text("name", name)
        if generate_stats is None and is_inference is None:
            raise ValueError("Neither generate_stats nor is_inference is given, expected one of the two, a bool.")
        if generate_stats is not None and is_inference is not None:
            raise ValueError("generate_stats and is_inference are both given, expected one of the two.")
        wanted = _checks.flag("generate_stats", generate_stats) if is_inference is None else \
            not _checks.flag("is_inference", is_inference)
        member_of(attention_implementation, "implementation", implementation)
        fields = self._shared(name, locals())
        tensors = self._tensors_by_name(page_table_k=paged_attention_k_table, page_table_v=paged_attention_v_table,
                                        max=score_max, sum_exp=score_sum_exp)
        o = self._tensors.new(f"{name}::O" if name else "", virtual=True)
        stats = self._tensors.new(f"{name}::Stats" if name else "", virtual=True) if wanted else None
        for made in (score_max, score_sum_exp):
            if made is not None:
                made.set_output(True)
        declined = None
        _checks.flag("unfuse_fma", unfuse_fma)  # how one product of the softmax is rounded: within its error either way
        if as_data_type("softmax_precision", softmax_precision) not in (data_type.NOT_SET, data_type.FLOAT):
            declined = f"softmax_precision of sdpa '{name}' is {softmax_precision}, expected FLOAT."
        if score_mod is not None and (paged_attention_k_table is not None or paged_attention_v_table is not None):
            # Pages behind a length need not exist, whatever the score_mod does with scores there.
            fields["padding_mask"] |= seq_len_q is not None and seq_len_kv is not None
        self._add(Node("sdpa", name, fields | tensors | {
            "o": o, "stats": stats,
            "paged_max_seq_len_kv": _checks.optional_whole("paged_attention_max_seq_len_kv", paged_attention_max_seq_len_kv),
            "stats_use_log2": _checks.flag("stats_use_log2", stats_use_log2),
            "attn_scale_prefolded": _checks.flag("attn_scale_prefolded", attn_scale_prefolded),
            "score_mod": score_expression(self, "score_mod", score_mod)}, declined))
        return o, stats

    def sdpa_backward(self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, dO: Tensor, stats: Tensor,
                      attn_scale: float | Tensor | None = None, bias: Tensor | None = None, dBias: Tensor | None = None,
                      use_alibi_mask: bool = False, use_padding_mask: bool = False, seq_len_q: Tensor | None = None,
                      seq_len_kv: Tensor | None = None, max_total_seq_len_q: int | None = None,
                      max_total_seq_len_kv: int | None = None, use_causal_mask: bool = False,
                      use_causal_mask_bottom_right: bool = False, sliding_window_length: int | None = None,
                      diagonal_alignment: diagonal_alignment = _TOP_LEFT, diagonal_band_left_bound: int | None = None,
                      diagonal_band_right_bound: int | None = None, dropout: Sequence | None = None,
                      rng_dump: Tensor | None = None, use_deterministic_algorithm: bool = False,
                      compute_data_type: object = None, name: str = "", score_mod: Callable | None = None,
                      score_mod_bprop: Callable | None = None, sink_token: Tensor | None = None,
                      dSink_token: Tensor | None = None,
                      implementation: attention_implementation = attention_implementation.AUTO,
                      cu_seq_len_q: Tensor | None = None, cu_seq_len_kv: Tensor | None = None,
                      block_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients (dQ, dK, dV), of the dims of q, k and v, of a loss whose gradient by O is `dO`.

        `stats` are the forward's, natural logarithms; scale, bias, masks, bounds, lengths, dropout and sink have to be the
        forward's. dropout's mask form has the reciprocal of its scale too: (mask, scale, scale_inv). `dBias`, `dSink_token`
        and `rng_dump` are tensors of the caller's that are written. Without `score_mod_bprop` the derivative of `score_mod`
        is found. With `use_deterministic_algorithm` reruns are equal bit by bit.
        """
        name = _checks.text("name", name)
        member_of(attention_implementation, "implementation", implementation)
        fields = self._shared(name, locals())
        tensors = self._tensors_by_name(d_bias=dBias, d_sink=dSink_token)
        for port, tensor in (("o", o), ("dO", dO), ("stats", stats)):
            if tensor is None:
                raise TypeError(f"{port} of sdpa_backward is None, expected a tensor of the graph.")
        tensors |= self._tensors_by_name(o=o, d_o=dO, stats=stats)
        gradients = [self._tensors.new(f"{name}::{port}" if name else "", virtual=True) for port in ("dQ", "dK", "dV")]
        for made in (dBias, dSink_token):
            if made is not None:
                made.set_output(True)
        self._add(Node("sdpa_backward", name, fields | tensors | dict(zip(("d_q", "d_k", "d_v"), gradients, strict=True)) | {
            "deterministic": _checks.flag("use_deterministic_algorithm", use_deterministic_algorithm),
            "score_mod": score_expression(self, "score_mod", score_mod),
            "score_mod_bprop": score_expression(self, "score_mod_bprop", score_mod_bprop)}))
        return tuple(gradients)

    def _tensors_by_name(self, **given):
        return {name: self._tensors.own(name, tensor) for name, tensor in given.items()}

    def _shared(self, name, given):
        """Fields that both passes have, of the call's arguments."""
        as_data_type("compute_data_type", given["compute_data_type"])
        for port in "qkv":
            if given[port] is None:
                raise TypeError(f"{port} is None, expected a tensor of the graph.")
        fields = self._tensors_by_name(**{port: given[port] for port in (
            "q", "k", "v", "bias", "block_mask", "seq_len_q", "seq_len_kv", "cu_seq_len_q", "cu_seq_len_kv")})
        fields["sink"] = self._tensors.own("sink_token", given["sink_token"])
        scale = given["attn_scale"]
        if isinstance(scale, Tensor):
            fields["attn_scale_tensor"] = self._tensors.own("attn_scale", scale)
        elif scale is not None:
            fields["attn_scale"] = _checks.number("attn_scale", scale)
        fields["alibi_mask"] = _checks.flag("use_alibi_mask", given["use_alibi_mask"])
        fields["padding_mask"] = _checks.flag("use_padding_mask", given["use_padding_mask"])
        for total in ("max_total_seq_len_q", "max_total_seq_len_kv"):
            fields[total] = _checks.optional_whole(total, given[total])
        fields |= _band(given)
        fields["dropout"] = self._dropout(given["dropout"], given["rng_dump"])
        return fields

    def _dropout(self, given, rng_dump):
        fields = {"rng_dump": self._tensors.own("rng_dump", rng_dump)}
        if rng_dump is not None:
            rng_dump.set_output(True)
        if given is None:
            return fields
        forms = "expected (p, seed, offset), (mask, scale) or, in a backward, (mask, scale, scale_inv)"
        if not isinstance(given, (tuple, list)) or len(given) not in (2, 3):
            raise TypeError(f"dropout is {given!r}, {forms}.")
        if isinstance(given[0], Tensor):
            names = ("mask", "scale", "scale_inv")
        elif len(given) == 3:
            fields["probability"] = _checks.number("The probability of dropout", given[0])
            names, given = ("seed", "offset"), given[1:]
        else:
            raise TypeError(f"dropout begins with a {type(given[0]).__name__}, {forms}.")
        for part, tensor in zip(names, given, strict=False):
            if tensor is None:
                raise TypeError(f"The {part} of dropout is None, expected a tensor of the graph.")
            fields[part] = self._tensors.own(f"The {part} of dropout", tensor)
        return fields


def _band(given):
    """Which keys a row sees by their distance; the older arguments are a band too."""
    alignment = member_of(diagonal_alignment, "diagonal_alignment", given["diagonal_alignment"])
    left = _checks.optional_whole("diagonal_band_left_bound", given["diagonal_band_left_bound"])
    right = _checks.optional_whole("diagonal_band_right_bound", given["diagonal_band_right_bound"])
    causal = _checks.flag("use_causal_mask", given["use_causal_mask"])
    bottom_right = _checks.flag("use_causal_mask_bottom_right", given["use_causal_mask_bottom_right"])
    window = _checks.optional_whole("sliding_window_length", given["sliding_window_length"])
    if causal and bottom_right:
        raise ValueError("use_causal_mask and use_causal_mask_bottom_right are both True, expected one of the two.")
    for said, argument, wanted in ((causal, "use_causal_mask", _TOP_LEFT),
                                   (bottom_right, "use_causal_mask_bottom_right", _BOTTOM_RIGHT)):
        if not said:
            continue
        if right not in (None, 0):
            raise ValueError(f"{argument} is True beside a diagonal_band_right_bound of {right}, expected one of the two.")
        if alignment is _BOTTOM_RIGHT and wanted is _TOP_LEFT:
            raise ValueError(f"{argument} is True beside a diagonal_alignment of BOTTOM_RIGHT, expected one of the two.")
        right, alignment = 0, wanted
    if window is not None:
        if left not in (None, window):
            raise ValueError(f"sliding_window_length is {window} beside a diagonal_band_left_bound of {left}, expected one "
                             "of the two.")
        left = window
    return {"left_bound": left, "right_bound": right,
            "diagonal_alignment": "top_left" if alignment is _TOP_LEFT else "bottom_right"}
