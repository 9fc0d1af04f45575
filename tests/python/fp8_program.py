"""Attention on FP8 operands as heddle.cudnn runs it, and in NumPy's f64, which takes the contract's steps one by one: for the tests
on the CPU and on a GPU."""

import math

import heddle.cudnn as cudnn
import ml_dtypes
import numpy as np

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
KINDS = {E4M3: cudnn.data_type.FP8_E4M3, E5M2: cudnn.data_type.FP8_E5M2, ml_dtypes.bfloat16: cudnn.data_type.BFLOAT16,
         np.float32: cudnn.data_type.FLOAT}


def fp8(x, kind):
    """Rounded to nearest, saturating."""
    return np.clip(x, -LARGEST[kind], LARGEST[kind]).astype(kind) if kind in LARGEST else np.asarray(x).astype(kind)


def held(x, kind):
    return fp8(x, kind).astype(np.float64)


def keys_seen(case, lq, lkv):
    """[B, Sq, Skv]: which keys each row sees."""
    rows, columns = np.arange(case["sq"])[:, None], np.arange(case["skv"])[None, :]
    seen = []
    for q_length, kv_length in zip(lq, lkv, strict=True):
        offset = kv_length - q_length if case.get("bottom_right") else 0
        keep = (rows < q_length) & (columns < kv_length)
        if case.get("right") is not None:
            keep &= columns <= rows + offset + case["right"]
        if case.get("left") is not None:
            keep &= columns > rows + offset - case["left"]
        seen.append(keep)
    return np.array(seen)


class Drawn:
    """A case's tensors, scales and lengths; what lies in the gaps between rows is NaN."""

    def __init__(self, case, rng):
        b, hq, hk, hv, d, dv = (case[name] for name in ("b", "hq", "hk", "hv", "d", "dv"))
        sq, skv, kinds = case["sq"], case["skv"], case.get("kinds", (E4M3,) * 4)
        self.case, self.memory = case, {}
        dims = {"q": (b, hq, sq, d), "k": (b, hk, skv, d), "v": (b, hv, skv, dv), "dO": (b, hq, sq, dv)}
        for (name, shape), kind in zip(dims.items(), kinds, strict=True):
            wide = np.full((shape[0], shape[2], shape[1], shape[3] + 16), np.nan, kind)  # BSHD, rows 16 columns apart
            tensor = wide.transpose(0, 2, 1, 3)[..., :shape[3]]
            tensor[...] = fp8(rng.standard_normal(shape) * case.get("spread", 24.0), kind)
            self.memory[name] = tensor
        self.scales = {"descale_q": 0.031, "descale_k": 0.047, "descale_v": 0.05, "descale_s": 1 / 300, "scale_s": 300.0,
                       "scale_o": 9.0, "descale_o": 1 / 9, "descale_dO": 0.02, "descale_dP": 1 / 40, "scale_dP": 40.0,
                       "scale_dQ": 7.0, "scale_dK": 5.0, "scale_dV": 11.0} | case.get("scales", {})
        self.scales = {name: float(np.float32(value)) for name, value in self.scales.items()}
        self.lq, self.lkv = case.get("lq", [sq] * b), case.get("lkv", [skv] * b)
        for name, lengths in (("q", self.lq), ("k", self.lkv), ("v", self.lkv), ("dO", self.lq)):
            for n, length in enumerate(lengths):
                self.memory[name][n, :, length:] = np.nan  # nobody's rows
        self.attn_scale = case.get("attn_scale", 1 / math.sqrt(d))
        self.seen = keys_seen(case, self.lq, self.lkv)[:, None]

    def numbers(self, name, heads=None):
        """In f64, times its descale; zeros in nobody's rows; each head as often as query heads share it."""
        x = np.nan_to_num(self.memory[name].astype(np.float64)) * self.scales[f"descale_{name}"]
        return x if heads is None else np.repeat(x, self.case["hq"] // heads, axis=1)

    def weights(self):
        s = self.attn_scale * self.numbers("q") @ self.numbers("k", self.case["hk"]).swapaxes(-1, -2)
        s = np.where(self.seen, s, -np.inf)
        most = s.max(-1, keepdims=True)
        e = np.where(self.seen, np.exp(s - np.where(np.isinf(most), 0, most)), 0)
        total = e.sum(-1, keepdims=True)
        with np.errstate(divide="ignore"):
            stats = np.where(total > 0, most + np.log(total), -np.inf)
        return e / np.where(total > 0, total, 1), stats

    def forward(self, o_kind):
        """Codes of O, Stats, Amax_S, Amax_O."""
        p, stats = self.weights()
        v = self.numbers("v", self.case["hv"])
        p8 = held(p * self.scales["scale_s"], self.memory["q"].dtype.type) * self.scales["descale_s"]
        o = p8 @ v
        return fp8(o * self.scales["scale_o"], o_kind), stats, p.max(), np.abs(o).max()

    def backward(self, o, stats, kinds):
        """Codes of dQ, dK, dV with their amax, and Amax_dP."""
        case = self.case
        with np.errstate(invalid="ignore"):
            s = self.attn_scale * self.numbers("q") @ self.numbers("k", case["hk"]).swapaxes(-1, -2)
            p = np.where(self.seen & ~np.isinf(stats), np.exp(s - stats), 0)
        o = np.nan_to_num(o.astype(np.float64)) * self.scales["descale_o"]
        d_o = self.numbers("dO")
        d_p = d_o @ self.numbers("v", case["hv"]).swapaxes(-1, -2)
        d_s = self.attn_scale * p * (d_p - (o * d_o).sum(-1, keepdims=True))
        d_s8 = held(d_s * self.scales["scale_dP"], self.memory["dO"].dtype.type) * self.scales["descale_dP"]
        p8 = held(p * self.scales["scale_s"], self.memory["q"].dtype.type) * self.scales["descale_s"]

        def shared(x, heads):
            return x.reshape(x.shape[0], heads, -1, *x.shape[2:]).sum(2)

        gradients = {"dQ": d_s8 @ self.numbers("k", case["hk"]),
                     "dK": shared(d_s8.swapaxes(-1, -2) @ self.numbers("q"), case["hk"]),
                     "dV": shared(p8.swapaxes(-1, -2) @ d_o, case["hv"])}
        codes = {name: fp8(x * self.scales[f"scale_{name}"], kind)
                 for (name, x), kind in zip(gradients.items(), kinds, strict=True)}
        return codes, {name: np.abs(x).max() for name, x in gradients.items()} | {"dP": np.abs(d_s).max()}


class Program:
    """A graph with the case's attributes, and what it is executed with."""

    def __init__(self, drawn, handle):
        self.drawn, self.handle, self.pack = drawn, handle, {}
        self.graph = cudnn.pygraph(io_data_type=cudnn.data_type.FP8_E4M3, intermediate_data_type=cudnn.data_type.FLOAT,
                                   compute_data_type=cudnn.data_type.FLOAT, handle=handle)

    def bound(self, name, array):
        strides = [stride // array.itemsize for stride in array.strides]
        tensor = self.graph.tensor(name=name, dim=array.shape, stride=strides, data_type=KINDS.get(
            array.dtype.type, cudnn.data_type.INT32))
        self.pack[tensor] = array
        return tensor

    def scales(self, names):
        return {name: self.bound(name, np.full((1, 1, 1, 1), self.drawn.scales[name], np.float32)) for name in names}

    def pages(self, name, rng):
        """K or V as a container of pages in any order, NaN in those that no sequence has, and its table."""
        x, rows, lengths = self.drawn.memory[name], self.drawn.case["page"], self.drawn.lkv
        b, heads, longest, columns = x.shape
        of_entry = -(-longest // rows)
        table = rng.permutation(b * of_entry + 3)[:b * of_entry].reshape(b, 1, of_entry, 1).astype(np.int32)
        container = np.full((b * of_entry + 3, heads, rows, columns), np.nan, x.dtype)
        for n in range(b):
            for p in range(-(-lengths[n] // rows)):
                some = x[n, :, p * rows:(p + 1) * rows]
                container[table[n, 0, p, 0], :, :some.shape[1]] = some
        return self.bound(name, container), {f"paged_attention_{name}_table": self.bound(f"{name} table", table)}

    def options(self):
        case, drawn, options = self.drawn.case, self.drawn, {}
        if "lq" in case:
            lengths = [np.array(one, np.int32).reshape(-1, 1, 1, 1) for one in (drawn.lq, drawn.lkv)]
            options |= {"use_padding_mask": True, "seq_len_q": self.bound("lq", lengths[0]),
                        "seq_len_kv": self.bound("lkv", lengths[1])}
        options["attn_scale"] = drawn.attn_scale
        if case.get("scale_is_tensor"):
            options["attn_scale"] = self.bound("scale", np.full((1, 1, 1, 1), drawn.attn_scale, np.float32))
        if case.get("bottom_right"):
            options["diagonal_alignment"] = cudnn.diagonal_alignment.BOTTOM_RIGHT
        return options | {"diagonal_band_left_bound": case.get("left"), "diagonal_band_right_bound": case.get("right")}

    def written(self, tensor, shape, kind):
        made = np.full(shape, np.nan, kind)
        tensor.set_output(True).set_data_type(KINDS[kind]).set_dim(shape).set_stride(
            [stride // made.itemsize for stride in made.strides])
        self.pack[tensor] = made
        return made

    def run(self):
        self.graph.build([cudnn.heur_mode.A])
        workspace = np.full(self.graph.get_workspace_size(), 0xff, np.uint8)
        self.graph.execute(self.pack, workspace, handle=self.handle)


def run_forward(drawn, handle, o_kind):
    case, program, paged = drawn.case, Program(drawn, handle), {}
    q = program.bound("q", drawn.memory["q"])
    if "page" in case:
        (k, of_k), (v, of_v) = (program.pages(name, np.random.default_rng(len(name))) for name in "kv")
        paged = of_k | of_v | {"paged_attention_max_seq_len_kv": case["skv"]}
    else:
        k, v = (program.bound(name, drawn.memory[name]) for name in "kv")
    made = program.graph.sdpa_fp8(
        q=q, k=k, v=v, **paged, **program.scales(("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")),
        **program.options(), generate_stats=True, name="fp8")
    shape = (case["b"], case["hq"], case["sq"])
    results = [program.written(made[0], (*shape, case["dv"]), o_kind), program.written(made[1], (*shape, 1), np.float32)]
    results += [program.written(amax, (1, 1, 1, 1), np.float32) for amax in made[2:]]
    program.run()
    return results


def run_backward(drawn, handle, o, stats, kinds):
    case, program = drawn.case, Program(drawn, handle)
    tensors = {name: program.bound(name, drawn.memory[name]) for name in ("q", "k", "v", "dO")}
    tensors |= {"o": program.bound("o", o), "stats": program.bound("stats", stats)}
    names = [name for name in drawn.scales if name != "scale_o"]
    made = program.graph.sdpa_fp8_backward(**tensors, **program.scales(names), **program.options(), name="fp8")
    shapes = [(case["b"], case["hq"], case["sq"], case["d"]), (case["b"], case["hk"], case["skv"], case["d"]),
              (case["b"], case["hv"], case["skv"], case["dv"])]
    gradients = [program.written(one, shape, kind) for one, shape, kind in zip(made[:3], shapes, kinds, strict=True)]
    amaxes = [program.written(one, (1, 1, 1, 1), np.float32) for one in made[3:]]
    program.run()
    return dict(zip(("dQ", "dK", "dV"), gradients, strict=True)), dict(zip(("dQ", "dK", "dV", "dP"), amaxes, strict=True))


PAGED = {"b": 3, "hq": 6, "hk": 2, "hv": 2, "sq": 40, "skv": 130, "d": 64, "dv": 48, "lq": [40, 0, 7], "lkv": [130, 64, 1]}
PAGES = {"pages": PAGED | {"page": 16}, "one page": PAGED | {"page": 256}, "pages of a row": PAGED | {"page": 1, "skv": 131},
         "pages, causal to the bottom right": PAGED | {"page": 32, "right": 0, "bottom_right": True},
         "pages of E5M2": PAGED | {"page": 8, "kinds": (E5M2,) * 4}}
PLAIN = {"b": 2, "hq": 4, "hk": 4, "hv": 4, "sq": 77, "skv": 77, "d": 48, "dv": 48}
CASES = {
    "full": PLAIN,
    "causal": PLAIN | {"right": 0, "sq": 130, "skv": 150},
    "causal to the bottom right": PLAIN | {"right": 0, "bottom_right": True, "sq": 60, "skv": 141},
    "window": PLAIN | {"right": 3, "left": 11, "sq": 128, "skv": 128},
    "lengths": PLAIN | {"lq": [0, 50], "lkv": [77, 33]},
    "lengths, causal to the bottom right": PLAIN | {"lq": [40, 50], "lkv": [0, 33], "right": 0, "bottom_right": True},
    "no keys for some": PLAIN | {"lq": [77, 50], "lkv": [5, 33], "right": 2, "bottom_right": True},
    "grouped": PLAIN | {"hq": 6, "hk": 2, "hv": 3, "scale_is_tensor": True},
    "one head of keys": PLAIN | {"hk": 1, "hv": 1, "d": 33, "dv": 65},
    "E5M2": PLAIN | {"kinds": (E5M2,) * 4},
    "mixed": PLAIN | {"kinds": (E4M3, E5M2, E4M3, E5M2)},
    "one row, many keys": PLAIN | {"sq": 1, "skv": 1030},
    "many rows, one key": PLAIN | {"sq": 300, "skv": 1},
    "saturated": PLAIN | {"scales": {"scale_s": 3000.0, "scale_o": 1e4, "scale_dP": 1e5, "scale_dQ": 1e5, "scale_dK": 1e5,
                                     "scale_dV": 1e6}},
    "huge scores": PLAIN | {"spread": 200.0, "attn_scale": 4.0},
    "negative scale": PLAIN | {"attn_scale": -0.2},
    "no scale": PLAIN | {"attn_scale": 0.0},
}
