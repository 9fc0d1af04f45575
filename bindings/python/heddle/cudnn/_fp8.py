"""sdpa_fp8 and sdpa_fp8_backward."""

from heddle import _checks
from heddle.cudnn._node import Node
from heddle.cudnn._pointwise import score_expression
from heddle.cudnn._tensor import Tensor
from heddle.cudnn._types import data_type, diagonal_alignment

# What both passes may be given beside their tensors and scales, as sdpa is, and what each is if it is not given. Those that
# change scores are declined when the graph is checked.
_OPTIONS = {"attn_scale": None, "bias": None, "block_mask": None, "use_alibi_mask": False, "use_padding_mask": False,
            "seq_len_q": None, "seq_len_kv": None, "use_causal_mask": False, "use_causal_mask_bottom_right": False,
            "sliding_window_length": None, "diagonal_alignment": diagonal_alignment.TOP_LEFT,
            "diagonal_band_left_bound": None, "diagonal_band_right_bound": None, "dropout": None, "rng_dump": None,
            "compute_data_type": None, "cu_seq_len_q": None, "cu_seq_len_kv": None, "max_total_seq_len_q": None,
            "max_total_seq_len_kv": None, "sink_token": None, "score_mod": None}
# Names that some of them have had here and there.
_ALIASES = {"sliding_window": "sliding_window_length", "left_bound": "diagonal_band_left_bound",
            "right_bound": "diagonal_band_right_bound", "fn": "score_mod"}
_FORWARD_SCALES = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
_BACKWARD_SCALES = {"descale_q": "descale_q", "descale_k": "descale_k", "descale_v": "descale_v", "descale_o": "descale_o",
                    "descale_dO": "descale_d_o", "descale_s": "descale_s", "descale_dP": "descale_d_p",
                    "scale_s": "scale_s", "scale_dQ": "scale_d_q", "scale_dK": "scale_d_k", "scale_dV": "scale_d_v",
                    "scale_dP": "scale_d_p"}


class Fp8Attention:
    """Attention on tensors of FP8_E4M3 or FP8_E5M2, each beside FLOAT scalars: a descale multiplies codes, a scale what
    becomes codes, which saturate. An amax is the largest magnitude before the scale, FLOAT [1, 1, 1, 1].
    """

    def sdpa_fp8(self, q: Tensor, k: Tensor, v: Tensor, descale_q: Tensor, descale_k: Tensor, descale_v: Tensor,
                 descale_s: Tensor | None = None, scale_s: Tensor | None = None, scale_o: Tensor | None = None,
                 is_inference: bool | None = None, *, generate_stats: bool | None = None,
                 paged_attention_k_table: Tensor | None = None, paged_attention_v_table: Tensor | None = None,
                 paged_attention_max_seq_len_kv: int | None = None, name: str = "",
                 **options: object) -> tuple[Tensor, ...]:
        """(O, Stats, Amax_S, Amax_O) of sdpa's softmax and masks; without descale_s, scale_s and scale_o (O, Stats, Amax_O).

        options: sdpa's attn_scale, padding, causal and band arguments. Exactly one of `generate_stats` and `is_inference`
        has to be said; Stats is None where it is not wanted. Pages as sdpa's; without tables their length is not read.
        """
        name = _checks.text("name", name)
        if (generate_stats is None) == (is_inference is None):
            raise ValueError("Of generate_stats and is_inference "
                             f"{'neither' if is_inference is None else 'both'} is given, expected one of the two, a bool.")
        wanted = _checks.flag("generate_stats", generate_stats) if is_inference is None else \
            not _checks.flag("is_inference", is_inference)
        given = (descale_q, descale_k, descale_v, descale_s, scale_s, scale_o)
        of_weights = given[3:]
        if any(one is None for one in of_weights) and not all(one is None for one in of_weights):
            raise ValueError("Some of descale_s, scale_s and scale_o are given and some are not, expected all or none.")
        scales = self._scales(dict(zip(_FORWARD_SCALES, given, strict=True)), required=_FORWARD_SCALES[:3])
        fields = self._fp8_fields("sdpa_fp8", name, {"q": q, "k": k, "v": v}, options) | scales
        fields |= self._tensors_by_name(page_table_k=paged_attention_k_table, page_table_v=paged_attention_v_table)
        longest = _checks.optional_whole("paged_attention_max_seq_len_kv", paged_attention_max_seq_len_kv)
        if paged_attention_k_table is not None or paged_attention_v_table is not None:
            fields["paged_max_seq_len_kv"] = longest
        o = self._made(name, "O")
        stats = self._made(name, "Stats") if wanted else None
        amaxes = {"amax_o": self._amax(name, "Amax_O")}
        if scale_s is not None:
            amaxes = {"amax_s": self._amax(name, "Amax_S")} | amaxes
        self._add(Node("sdpa_fp8", name, fields | {"o": o, "stats": stats} | amaxes))
        return o, stats, *amaxes.values()

    def sdpa_fp8_backward(self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, dO: Tensor, stats: Tensor, descale_q: Tensor,
                          descale_k: Tensor, descale_v: Tensor, descale_o: Tensor, descale_dO: Tensor, descale_s: Tensor,
                          descale_dP: Tensor, scale_s: Tensor, scale_dQ: Tensor, scale_dK: Tensor, scale_dV: Tensor,
                          scale_dP: Tensor, *, use_deterministic_algorithm: bool = False, name: str = "",
                          **options: object) -> tuple[Tensor, ...]:
        """(dQ, dK, dV, Amax_dQ, Amax_dK, Amax_dV, Amax_dP), where dP is the gradient of the scaled dot.

        stats are the forward's, natural logarithms; options have to be the forward's.
        """
        name, given = _checks.text("name", name), locals()
        scales = self._scales({port: given[port] for port in _BACKWARD_SCALES}, required=_BACKWARD_SCALES)
        fields = self._fp8_fields("sdpa_fp8_backward", name, {"q": q, "k": k, "v": v}, options)
        for port, tensor in (("o", o), ("dO", dO), ("stats", stats)):
            if tensor is None:
                raise TypeError(f"{port} of sdpa_fp8_backward is None, expected a tensor of the graph.")
        fields |= self._tensors_by_name(o=o, d_o=dO, stats=stats)
        fields |= {_BACKWARD_SCALES[port]: tensor for port, tensor in scales.items()}
        ports = {"d_q": "dQ", "d_k": "dK", "d_v": "dV"}
        made = {field: self._made(name, port) for field, port in ports.items()}
        made |= {f"amax_{field}": self._amax(name, f"Amax_{port}") for field, port in (ports | {"d_p": "dP"}).items()}
        fields["deterministic"] = _checks.flag("use_deterministic_algorithm", use_deterministic_algorithm)
        self._add(Node("sdpa_fp8_backward", name, fields | made))
        return tuple(made.values())

    def _scales(self, given, required):
        for port in required:
            if given[port] is None:
                raise TypeError(f"{port} is None, expected a tensor of the graph.")
        return self._tensors_by_name(**given)

    def _fp8_fields(self, op, name, tensors, options):
        said = dict(_OPTIONS)
        for option, value in options.items():
            option = _ALIASES.get(option, option)
            if option not in _OPTIONS:
                raise TypeError(f"{op} has no argument {option!r}, expected one of {', '.join(_OPTIONS)}.")
            if option in options and options[option] is not value:
                raise ValueError(f"{option} of {op} is given by two names, expected one.")
            said[option] = value
        fields = self._shared(name, said | tensors)
        return fields | {"score_mod": score_expression(self, "score_mod", said["score_mod"])}

    def _made(self, name, port):
        return self._tensors.new(f"{name}::{port}" if name else "", virtual=True)

    def _amax(self, name, port):
        return self._made(name, port).set_data_type(data_type.FLOAT)
