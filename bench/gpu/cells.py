"""What bench/gpu/measure.py measures, beside whom, and what is asked of it."""

from dataclasses import dataclass
from itertools import product

# Peers, and Heddle's own work that a cell is compared with.
NAMES = {"cudnn": "cuDNN", "flash2": "FlashAttention-2", "flex": "FlexAttention", "efficient": "torch's efficient attention",
         "compiled": "torch.compile", "compiled_cudnn": "torch.compile RoPE + cuDNN", "torch": "torch",
         "unrotated": "Heddle without RoPE", "unordered": "Heddle, not deterministic", "joined": "Heddle, of log-sum-exps"}
SOFT_CAP = 20.0


@dataclass(frozen=True)
class Attention:
    table: str
    name: str
    length: int
    dim: int
    batch: int
    heads: int
    kv_heads: int = 0  # 0: as many as heads
    value_dim: int = 0  # 0: as wide as queries and keys
    causal: bool = True
    window: int = 0
    score: str = ""  # "soft_cap" or "alibi"
    rope: bool = False
    bias: bool = False  # [1, heads, length, length]
    bias_gradient: bool = False
    mask: bool = False  # booleans [1, 1, length, length]
    dropout: float = 0
    lengths: tuple = ()  # of each batch entry's queries and keys; () for all of `length`
    packed: bool = False  # the entries lie one after the other, [token, head, dim] in memory
    dtype: str = "bf16"
    backward: bool = False
    deterministic: bool = False
    apart: bool = False  # the rows' statistics are a maximum and a sum, not a log-sum-exp
    peers: tuple = ("cudnn", "flash2")
    floors: tuple = ()  # (who, at least how many times as fast); "recorded" is the best peer of recorded.tsv
    unit = "TFLOP/s"

    @property
    def groups(self):
        return self.kv_heads or self.heads

    @property
    def values(self):
        return self.value_dim or self.dim

    def length_of(self, batch):
        return self.lengths[batch] if self.lengths else self.length

    @property
    def work(self):
        """FLOPs: 4 B H S^2 d (2 of queries and keys, 2 of values), halved if causal, the band's share under a window; the
        backward is 2.5 times that."""
        pairs = sum(self.length_of(batch)**2 for batch in range(self.batch)) * (0.5 if self.causal else 1)
        if self.window:
            pairs = self.batch * (self.length * self.window - self.window**2 / 2)
        return 2 * self.heads * pairs * (self.dim + self.values) * (2.5 if self.backward else 1)


@dataclass(frozen=True)
class Streaming:
    table: str
    name: str
    op: str  # "rms_norm", "layer_norm", either with "_backward", or "rope"
    dims: tuple
    floors: tuple  # ("rate", at least so many GB/s)
    peers: tuple = ("torch", "compiled")
    unit = "GB/s"

    @property
    def work(self):
        """Bytes: each tensor of bf16 read or written once, in units that make work / ms / 1e9 GB/s."""
        count = 1
        for dim in self.dims:
            count *= dim
        return 2 * count * (3 if self.op.endswith("_backward") else 2) * 1e3


def rate(cell, milliseconds):
    """TFLOP/s or GB/s."""
    return cell.work / milliseconds / 1e9


def _dense(backward):
    pass_ = "backward" if backward else "forward"
    for dim in (64, 128, 256):
        for causal in (False, True):
            for length in (512, 2048, 8192, 16384):
                if length == 512:
                    floors = (("recorded", 0.85),)
                elif not backward:
                    floors = (("recorded", 0.92 if dim == 128 else 0.88), ("cudnn", 1.0))
                else:
                    floors = (("recorded", 0.80),) if dim == 256 else (("recorded", 0.85), ("cudnn", 0.95))
                yield Attention(f"{pass_.capitalize()}, bf16", f"{pass_} d{dim} {'causal' if causal else 'full'} {length}",
                                length, dim, 16384 // length, 2048 // dim, causal=causal, backward=backward, floors=floors)


def _in_memory():
    """What a kernel reads beside Q, K and V, or by whose lengths it finds them."""
    what = "with lengths, biases, masks or dropout, bf16"
    full = dict(causal=False)
    for kind, options, passes, peers in (
            ("packed", dict(packed=True), ("forward", "backward"), ("flash2", "flex")),
            ("padded", full, ("forward", "backward"), ("cudnn", "efficient", "flex")),
            ("bias", dict(bias=True) | full, ("forward", "backward"), ("cudnn", "efficient", "flex")),
            ("bias", dict(bias=True, bias_gradient=True) | full, ("gradient",), ("cudnn", "efficient", "flex")),
            ("mask", dict(mask=True) | full, ("forward", "backward"), ("cudnn", "efficient")),
            ("dropout", dict(dropout=0.1), ("forward", "backward"), ("cudnn", "flash2"))):
        for dim, length, pass_ in product((64, 128), (2048, 8192), passes):
            batch = 16384 // length
            if kind in ("packed", "padded"):
                options = options | {"lengths": tuple(length - n * (3 * length // (4 * batch) + 7) for n in range(batch))}
            # FlexAttention takes seconds to compile: the largest cell of each kind has it.
            some = peers if (dim, length) == (128, 8192) else tuple(who for who in peers if who != "flex")
            table = "Forward" if pass_ == "forward" else "Backward"
            yield Attention(f"{table}, {what}", f"{kind} {pass_} d{dim} {length}", length, dim, batch, 2048 // dim, **options,
                            backward=pass_ != "forward", peers=some)


def _apart():
    """What it costs that the rows' maxima and sums come apart."""
    common = dict(table="Maxima and sums apart beside log-sum-exps, full, S 4096", length=4096, batch=4, causal=False,
                  apart=True, peers=("joined",))
    for dim, backward in product((64, 128, 256), (False, True)):
        pass_ = "backward" if backward else "forward"
        for kind in ("plain", "bias"):
            yield Attention(name=f"apart {kind} {pass_} d{dim}", dim=dim, heads=2048 // dim, bias=kind == "bias",
                            backward=backward, **common)
        if dim <= 128:
            for kind in ("plain", "bias"):
                yield Attention(name=f"apart f32 {kind} {pass_} d{dim}", dim=dim, heads=16, bias=kind == "bias", dtype="f32",
                                backward=backward, **common)
    for kind, options in (("gradient", dict(bias=True, bias_gradient=True)), ("mask", dict(mask=True)),
                          ("soft_cap", dict(score="soft_cap"))):
        yield Attention(name=f"apart {kind} backward d128", dim=128, heads=16, backward=True, **options, **common)


def _wide():
    """Heads of more columns than a warp holds sums of."""
    table = "Wide heads, S 4096"
    for dim, backward, causal in product((320, 512), (False, True), (False, True)):
        yield Attention(table, f"wide {'backward' if backward else 'forward'} d{dim} {'causal' if causal else 'full'}", 4096, dim, 4,
                        4, causal=causal, backward=backward, peers=("efficient",))
    for dim, backward, causal in product((256, 320, 512), (False, True), (False, True)):
        yield Attention(table, f"wide f32 {'backward' if backward else 'forward'} d{dim} {'causal' if causal else 'full'}", 4096, dim,
                        4, 4, causal=causal, backward=backward, dtype="f32", peers=("efficient",))
    for backward in (False, True):
        yield Attention(table, f"wide f32 {'backward' if backward else 'forward'} d512, one head of 16384 rows", 16384, 512, 1, 1,
                        causal=False, backward=backward, dtype="f32", peers=("efficient",))


def _between():
    """Heads between 128 and 256, and those of latent attention (MLA), whose values are narrower."""
    for value_dim, backward, causal, length in product((128, 192), (False, True), (True, False), (2048, 4096, 8192)):
        yield Attention("Heads of 192 columns, and of 192 with values of 128 (MLA)",
                        f"{'mla' if value_dim == 128 else 'd192'} {'backward' if backward else 'forward'} "
                        f"{'causal' if causal else 'full'} {length}", length, 192, 16384 // length, 16, value_dim=value_dim,
                        causal=causal, backward=backward, peers=("cudnn",))


def short_cells():
    """Encoders' sequences, 32768 tokens of about 1024 columns."""
    for backward in (False, True):
        pass_ = "backward" if backward else "forward"
        for dim, length in product((32, 64, 80, 128), (16, 32, 64, 77, 96, 128, 197, 256, 257, 384, 512, 577, 1024)):
            yield Attention(f"Short sequences, full, {pass_}", f"short {pass_} d{dim} {length}", length, dim, -(-32768 // length),
                            1024 // dim // 4 * 4, causal=False, backward=backward, floors=(("cudnn", 1.0), ("flash2", 1.0)))


def all_cells():
    yield from _dense(False)
    yield from _dense(True)
    for batch, length in ((8, 2048), (2, 8192)):
        gqa = dict(length=length, dim=128, batch=batch, heads=32, kv_heads=8)
        yield Attention("32 query heads over 8, causal, d 128", f"gqa forward {length}", **gqa,
                        floors=(("recorded", 0.92), ("cudnn", 1.0)))
        yield Attention("32 query heads over 8, causal, d 128", f"gqa backward {length}", **gqa, backward=True,
                        floors=(("recorded", 0.85), ("cudnn", 0.95)))
        beside = (("compiled_cudnn", 1.4),) if length == 2048 else ()
        yield Attention("RoPE and causal attention, 32 query heads over 8, d 128", f"rope forward {length}", **gqa, rope=True,
                        peers=("compiled_cudnn", "unrotated"), floors=(*beside, ("unrotated", 0.93)))
    for name, ratio in (("soft_cap", 2.0), ("alibi", 1.2), ("window", 1.3)):
        for backward in (False, True):
            yield Attention("Scores and masks beside FlexAttention, causal, d 128, S 8192",
                            f"{name} {'backward' if backward else 'forward'}", 8192, 128, 2, 16,
                            window=1024 if name == "window" else 0, score="" if name == "window" else name,
                            backward=backward, peers=("flex",), floors=(("flex", ratio),))
    for dim in (64, 128, 256):
        for causal in (False, True):
            yield Attention("Deterministic backward, S 8192", f"deterministic d{dim} {'causal' if causal else 'full'}", 8192,
                            dim, 2, 2048 // dim, causal=causal, backward=True, deterministic=True, peers=("unordered",),
                            floors=(("unordered", 0.85),))
    yield from _in_memory()
    yield from _apart()
    yield from _wide()
    yield from _between()
    for dim, name in ((64, "f32"), (128, "f32 d128")):
        for backward in (False, True):
            yield Attention(f"f32, full, d {dim}, S 4096", f"{name} {'backward' if backward else 'forward'}", 4096, dim, 4, 16,
                            causal=False, dtype="f32", backward=backward, peers=("efficient",), floors=(("efficient", 2.0),))
    table = "Kernels bound by memory, bf16"
    for norm, rates in (("rms_norm", (3700, 3500)), ("layer_norm", (3900, 3600))):
        for rows, columns in ((16384, 4096), (32768, 2048), (8192, 16384)):
            for direction, rate in zip(("", "_backward"), rates):
                yield Streaming(table, f"{norm} {direction[1:] or 'forward'} {rows}x{columns}", norm + direction,
                                (rows, columns), (("rate", rate),) if columns == 4096 else ())
    yield Streaming(table, "rope 4x32x4096x128", "rope", (4, 32, 4096, 128), (("rate", 3500),))
