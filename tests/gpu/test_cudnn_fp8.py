"""heddle.cudnn's attention on FP8 operands on an NVIDIA GPU: at most twice as far from f64, on the same operands, as the naive
computation in FP8, whose weights and result are rounded where the contract says."""

import math

import heddle.cudnn as cudnn
import pytest

torch = pytest.importorskip("torch")

DEVICE = "cuda"
E4M3, FLOAT = torch.float8_e4m3fn, cudnn.data_type.FLOAT
LARGEST = 448.0


@pytest.fixture(scope="module", autouse=True)
def hopper():
    if DEVICE == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("kernels of FP8 operands are Hopper's")


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


def codes(x):
    """Rounded to nearest, saturating."""
    return x.clamp(-LARGEST, LARGEST).to(E4M3)


def drawn(b, h, s, d, spread, lengths):
    """[B, H, S, D] in memory of [B, S, H, D], rows 16 columns apart; what is nobody's is NaN."""
    wide = torch.full((b, s, h, d + 16), math.nan, device=DEVICE).to(E4M3)
    x = codes(torch.randn(b, s, h, d, device=DEVICE) * spread)
    for n, length in enumerate(lengths):
        wide[n, :length, :, :d] = x[n, :length]
    return wide.transpose(1, 2)[..., :d]


class Case:
    def __init__(self, b=2, hq=4, hk=4, hv=4, sq=384, skv=384, d=128, dv=128, lq=None, lkv=None, left=None, right=None,
                 bottom_right=False, attn_scale=None, scale_is_tensor=False, spread=24.0, scales=()):
        self.lq, self.lkv = lq or [sq] * b, lkv or [skv] * b
        self.padded, self.scale_is_tensor = lq is not None, scale_is_tensor
        self.left, self.right, self.bottom_right = left, right, bottom_right
        self.attn_scale = 1 / math.sqrt(d) if attn_scale is None else attn_scale
        self.q = drawn(b, hq, sq, d, spread, self.lq)
        self.k, self.v = drawn(b, hk, skv, d, spread, self.lkv), drawn(b, hv, skv, dv, spread, self.lkv)
        self.scales = {"descale_q": 0.031, "descale_k": 0.047, "descale_v": 0.05, "descale_s": 1 / 256, "scale_s": 256.0,
                       "scale_o": 9.0} | dict(scales)
        rows, columns = torch.arange(sq, device=DEVICE)[:, None], torch.arange(skv, device=DEVICE)[None]
        seen = []
        for q_length, kv_length in zip(self.lq, self.lkv, strict=True):
            keep = (rows < q_length) & (columns < kv_length)
            offset = kv_length - q_length if bottom_right else 0
            if right is not None:
                keep &= columns <= rows + offset + right
            if left is not None:
                keep &= columns > rows + offset - left
            seen.append(keep)
        self.seen = torch.stack(seen)[:, None]

    def truth(self, holds):
        """Codes of O as numbers, Stats, Amax_S and Amax_O in f64; `holds` rounds weights and O to FP8."""
        scale = {name: float(torch.tensor(x, dtype=torch.float32)) for name, x in self.scales.items()}
        q, k, v = (x.double().nan_to_num(0) * scale[f"descale_{name}"] for name, x in (("q", self.q), ("k", self.k), ("v", self.v)))
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        s = (q @ k.transpose(-1, -2) * self.attn_scale).masked_fill(~self.seen, -math.inf)
        p, stats = torch.softmax(s, -1).nan_to_num(0), torch.logsumexp(s, -1, keepdim=True)
        weights = p * scale["scale_s"]
        weights = codes(weights.float()).double() if holds else weights.clamp(-LARGEST, LARGEST)
        o = weights * scale["descale_s"] @ v
        scaled = (o * scale["scale_o"]).clamp(-LARGEST, LARGEST)
        return codes(scaled.float()).double() if holds else scaled, stats, p.max(), o.abs().max()


def run(case, handle):
    graph = cudnn.pygraph(io_data_type=E4M3, intermediate_data_type=FLOAT, compute_data_type=FLOAT, handle=handle)
    pack = {}

    def bound(x):
        tensor = graph.tensor(dim=x.shape, stride=x.stride(), data_type=x.dtype)
        pack[tensor] = x
        return tensor

    def one(x):
        return bound(torch.full((1, 1, 1, 1), x, device=DEVICE))

    options = {"attn_scale": one(case.attn_scale) if case.scale_is_tensor else case.attn_scale,
               "diagonal_band_left_bound": case.left, "diagonal_band_right_bound": case.right}
    if case.bottom_right:
        options["diagonal_alignment"] = cudnn.diagonal_alignment.BOTTOM_RIGHT
    if case.padded:
        lengths = [bound(torch.tensor(x, device=DEVICE, dtype=torch.int32).reshape(-1, 1, 1, 1)) for x in (case.lq, case.lkv)]
        options |= {"use_padding_mask": True, "seq_len_q": lengths[0], "seq_len_kv": lengths[1]}
    made = graph.sdpa_fp8(bound(case.q), bound(case.k), bound(case.v), **{name: one(x) for name, x in case.scales.items()},
                          **options, generate_stats=True)
    b, hq, sq = case.q.shape[:3]
    results = [torch.full((b, hq, sq, case.v.shape[3]), math.nan, device=DEVICE).to(E4M3)]
    results += [torch.full((b, hq, sq, 1), math.nan, device=DEVICE)]
    results += [torch.full((1, 1, 1, 1), math.nan, device=DEVICE) for _ in range(2)]
    for tensor, result in zip(made, results, strict=True):
        tensor.set_output(True).set_data_type(result.dtype).set_dim(result.shape).set_stride(result.stride())
        pack[tensor] = result
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    workspace = torch.full((graph.get_workspace_size(),), 255, device=DEVICE, dtype=torch.uint8)
    for _ in range(2):  # what an execution leaves in the workspace is nothing to the next
        graph.execute(pack, workspace, handle=handle)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return results


CASES = {
    "full": {}, "one tile": {"sq": 128, "skv": 128}, "odd": {"sq": 333, "skv": 277}, "one row": {"sq": 1, "skv": 700},
    "one key": {"sq": 200, "skv": 1}, "long": {"b": 1, "hq": 2, "hk": 2, "hv": 2, "sq": 2100, "skv": 4300},
    "causal": {"right": 0}, "causal, odd": {"right": 0, "sq": 301, "skv": 450},
    "causal to the bottom right": {"right": 0, "bottom_right": True, "sq": 300, "skv": 555},
    "window": {"right": 5, "left": 77, "sq": 500, "skv": 500}, "left alone": {"left": 130},
    "lengths": {"lq": [384, 100], "lkv": [17, 300]}, "no rows, no keys": {"lq": [0, 384], "lkv": [300, 0]},
    "lengths, causal to the bottom right": {"lq": [200, 100], "lkv": [130, 384], "right": 0, "bottom_right": True},
    "grouped": {"hq": 6, "hk": 2, "hv": 3, "right": 0}, "one head of keys": {"hk": 1, "hv": 1},
    "d 64": {"d": 64, "dv": 64, "right": 0}, "d 128 and 64": {"dv": 64}, "d 64 and 128": {"d": 64, "right": 0},
    "scale is a tensor": {"scale_is_tensor": True}, "negative scale": {"attn_scale": -0.2, "right": 0},
    "no scale": {"attn_scale": 0.0}, "negative descale": {"scales": {"descale_k": -0.05}},
    "huge scores": {"spread": 200.0, "attn_scale": 4.0}, "saturated results": {"scales": {"scale_o": 2000.0}},
    "many tiles": {"b": 40, "hq": 8, "hk": 8, "hv": 8, "sq": 200, "skv": 150, "right": 0},
}


# A dot product of Q and K is one sum of the tensor core's, of about 14 bits: of scores of thousands that is a whole number.
LOSES_SCORES = pytest.mark.xfail(reason="scores of thousands keep 14 bits: 87 off where the naive computation is 12.5",
                                 strict=True)


@pytest.mark.parametrize("name", [pytest.param(name, marks=LOSES_SCORES) if name == "huge scores" else name for name in CASES])
def test_forward(name, handle):
    case = Case(**CASES[name])
    o, stats, amax_s, amax_o = run(case, handle)
    exact, true_stats, true_amax_s, true_amax_o = case.truth(holds=False)
    naive = case.truth(holds=True)[0]
    found = o.double()
    assert not found.isnan().any()
    outside = torch.ones_like(found, dtype=torch.bool)
    for n, length in enumerate(case.lq):
        outside[n, :, :length] = False
    assert (found[outside] == 0).all()
    error, allowed = (found - exact).abs(), (naive - exact).abs()
    floor = 1e-3 * exact.abs().max()
    assert error.square().mean().sqrt() <= 2 * allowed.square().mean().sqrt() + floor / 10
    assert error.max() <= 2 * allowed.max() + floor
    finite = true_stats.isfinite()
    assert torch.equal(stats.double()[~finite], true_stats[~finite])
    torch.testing.assert_close(stats.double()[finite], true_stats[finite], rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(amax_s.item(), true_amax_s.item(), rtol=2e-3, atol=0)
    torch.testing.assert_close(amax_o.item(), true_amax_o.item(), rtol=5e-2, atol=1e-6)


@pytest.mark.parametrize("descale", [0.03, 1e2, 1e5, 1e12, 1e30, -1e5])
def test_scores_of_any_size(descale, handle):
    """Scores that are one product each, so that the tensor core's are exact: of the largest ones, several to a row, equal weights are
    left, however large they are."""
    case = Case(b=1, hq=2, hk=2, hv=2, sq=300, skv=520, spread=8.0, right=0, scales={"descale_q": descale, "descale_k": 1.0})
    for x in (case.q, case.k):
        b, h, s, d = x.shape
        alone = torch.zeros(b, h, s, d, device=DEVICE)
        alone[..., 5] = torch.exp2(torch.randint(-3, 8, (b, h, s), device=DEVICE).float()) * (torch.randn(b, h, s, device=DEVICE).sign())
        x[...] = codes(alone)
    o, stats, amax_s, amax_o = run(case, handle)
    exact, true_stats, true_amax_s, true_amax_o = case.truth(holds=False)
    allowed = (case.truth(holds=True)[0] - exact).abs()
    error = (o.double() - exact).abs()
    assert error.square().mean().sqrt() <= 2 * allowed.square().mean().sqrt() + 1e-4 * exact.abs().max()
    assert error.max() <= 2 * allowed.max() + 1e-3 * exact.abs().max()
    torch.testing.assert_close(stats.double(), true_stats, rtol=1e-6, atol=1e-2)
    torch.testing.assert_close(amax_s.item(), true_amax_s.item(), rtol=2e-3, atol=0)
    torch.testing.assert_close(amax_o.item(), true_amax_o.item(), rtol=5e-2, atol=1e-6)


def test_sums_are_in_f32(handle):
    """Sums of 8192 values of one sign with equal weights, which FP8 holds, seen before they are rounded: what the tensor core's
    own accumulator cuts off would show."""
    case = Case(b=1, hq=1, hk=1, hv=1, sq=128, skv=8192, spread=1.0)
    case.q.zero_()
    case.v[...] = codes(torch.rand(case.v.shape, device=DEVICE) * 100 + 100)
    ratio = (run(case, handle)[3].double() / case.truth(holds=False)[3]).item()
    assert abs(ratio - 1) < 2e-3, ratio

