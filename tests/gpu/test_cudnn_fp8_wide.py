"""Attention on FP8 operands that no kernel of FP8 takes, forward and backward, on an NVIDIA GPU: widened to 16 bits, and at most
twice as far from f64 as the naive computation in FP8, whose weights, gradients and results are rounded where the contract says."""

import contextlib
import ctypes
import pathlib
import sys

import heddle.cudnn as cudnn
import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))
import fp8_program as contract  # noqa: E402

E4M3, E5M2 = contract.E4M3, contract.E5M2
WIDE = contract.PLAIN | {"sq": 300, "skv": 260, "d": 128, "dv": 128}
CASES = {name: case for name, case in contract.CASES.items() if name != "saturated"} | {
    "tiles of many": WIDE, "tiles of many, causal": WIDE | {"right": 0}, "256 columns": WIDE | {"d": 256, "dv": 256},
    "columns between": WIDE | {"d": 96, "dv": 72, "hk": 2, "hv": 2}, "E5M2, wide": WIDE | {"kinds": (E5M2,) * 4},
    "64 and 128 of E4M3": WIDE | {"d": 64, "hk": 1, "hv": 1, "sq": 513},
    "lengths, wide": WIDE | {"lq": [300, 11], "lkv": [100, 260], "right": 0},
    "wide, grouped": WIDE | {"hq": 6, "hk": 2, "hv": 2, "scale_is_tensor": True},
    "wide, window": WIDE | {"right": 3, "left": 77, "sq": 390, "skv": 400},
    "wide, causal to the bottom right": WIDE | {"right": 0, "bottom_right": True, "sq": 200, "skv": 555},
    "wide, one row": WIDE | {"sq": 1, "skv": 700}, "wide, one key": WIDE | {"skv": 1},
    "wide, negative scale": WIDE | {"attn_scale": -0.2, "right": 0}, "wide, no scale": WIDE | {"attn_scale": 0.0},
    "wide, long": WIDE | {"b": 1, "hq": 2, "hk": 1, "hv": 1, "sq": 2100, "skv": 1300},
    "wide, few dP": WIDE | {"scales": {"scale_dP": 0.05, "descale_dP": 20.0}},
    "wide, small dP": WIDE | {"scales": {"scale_dP": 3000.0, "descale_dP": 1 / 3000.0, "descale_dO": 1e-5}},
}


@pytest.fixture(scope="module")
def handle():
    made = cudnn.create_handle(device="cuda")
    cudnn.set_stream(handle=made, stream=torch.cuda.current_stream().cuda_stream)
    yield made
    cudnn.destroy_handle(made)


@contextlib.contextmanager
def in_f64():
    """The contract's steps without a rounding."""
    fp8, held = contract.fp8, contract.held
    contract.fp8 = lambda x, kind: np.clip(x, -contract.LARGEST[kind], contract.LARGEST[kind]) if kind in contract.LARGEST else x
    contract.held = lambda x, kind: x
    try:
        yield
    finally:
        contract.fp8, contract.held = fp8, held


class OnDevice:
    """An array's bytes on the device, the gaps between its rows too."""

    def __init__(self, array):
        self.array = array
        spans = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
        count = sum(spans) + array.itemsize
        self.bytes = np.ctypeslib.as_array(ctypes.cast(array.ctypes.data, ctypes.POINTER(ctypes.c_uint8)), (count,))
        self.tensor = torch.from_numpy(self.bytes.copy()).cuda()

    def fetch(self):
        self.bytes[...] = self.tensor.cpu().numpy()


class Program(contract.Program):
    def run(self):
        self.graph.build([cudnn.heur_mode.A])
        workspace = torch.full((self.graph.get_workspace_size() + 1,), 255, dtype=torch.uint8, device="cuda")
        pack = {tensor: OnDevice(array) for tensor, array in self.pack.items()}
        for _ in range(2):  # what an execution leaves in the workspace is nothing to the next
            self.graph.execute({tensor: one.tensor.data_ptr() for tensor, one in pack.items()}, workspace.data_ptr(),
                               handle=self.handle)
        torch.cuda.synchronize()
        for one in pack.values():
            one.fetch()


@pytest.fixture(autouse=True)
def programs_on_the_gpu(monkeypatch):
    monkeypatch.setattr(contract, "Program", Program)


def near(made, naive, exact, what, of=2.0):
    made, naive = made.astype(np.float64), naive.astype(np.float64)
    assert not np.isnan(made).any(), what
    error, allowed = np.abs(made - exact), np.abs(naive - exact)
    floor = 1e-3 * np.abs(exact).max()
    assert np.sqrt((error**2).mean()) <= of * np.sqrt((allowed**2).mean()) + floor / 10, what
    assert error.max() <= of * allowed.max() + floor, what


@pytest.mark.parametrize("o_kind", [E4M3, E5M2, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("case", CASES | contract.PAGES)
def test_forward(case, o_kind, handle):
    drawn = contract.Drawn((CASES | contract.PAGES)[case], np.random.default_rng(len(case)))
    o, stats, amax_s, amax_o = contract.run_forward(drawn, handle, o_kind)
    naive, true_stats, true_amax_s, _ = drawn.forward(o_kind)
    with in_f64():
        exact, _, _, true_amax_o = drawn.forward(o_kind)
    native = case not in contract.PAGES and CASES[case]["d"] in (64, 128) and o_kind is E4M3 and "E5M2" not in case
    near(o, naive, exact, "O")
    np.testing.assert_allclose(stats, true_stats, rtol=1e-4 if native else 2e-6, atol=1e-2 if native else 2e-5)
    np.testing.assert_allclose(amax_s.item(), true_amax_s, rtol=2e-3)
    np.testing.assert_allclose(amax_o.item(), true_amax_o, rtol=5e-2)


@pytest.mark.parametrize("case, kinds, o_kind", [*((case, kinds, E4M3) for case in CASES for kinds in ((E4M3,) * 3, (E5M2, E5M2, E4M3))),
                                                 *(("full", (E4M3,) * 3, kind) for kind in (ml_dtypes.bfloat16, np.float32, E5M2))])
def test_backward(case, kinds, o_kind, handle):
    drawn = contract.Drawn(CASES[case], np.random.default_rng(len(case)))
    o, stats, *_ = drawn.forward(o_kind)
    o = np.array(o)
    for n, length in enumerate(drawn.lq):
        o[n, :, length:] = np.nan
    stats = stats.astype(np.float32)
    made, amaxes = contract.run_backward(drawn, handle, o, stats, kinds)
    naive, _ = drawn.backward(o, stats.astype(np.float64), kinds)
    sums, _ = drawn.backward(o, stats.astype(np.float64), (np.float32,) * 3)
    with in_f64():
        exact, true_amaxes = drawn.backward(o, stats.astype(np.float64), kinds)
        exact_sums, _ = drawn.backward(o, stats.astype(np.float64), (np.float32,) * 3)
    for name in made:
        near(made[name], naive[name], exact[name], name)
    for name, amax in amaxes.items():
        # The largest of sums is no further off than one of them, twice as far as the naive one.
        allowed = 2e-2 * true_amaxes[name] + 1e-5
        if name in sums:
            allowed += 2 * np.abs(sums[name] - exact_sums[name]).max() / drawn.scales[f"scale_{name}"]
        assert abs(amax.item() - true_amaxes[name]) <= allowed, name


@pytest.mark.parametrize("mask", [{}, {"right": 0}])
def test_backward_in_a_fixed_order(mask, handle):
    """The same bits each time, and those of any order but for the order."""
    drawn = contract.Drawn(WIDE | mask | {"sq": 1100, "skv": 1000}, np.random.default_rng(5))
    o, stats, *_ = drawn.forward(E4M3)
    stats = stats.astype(np.float32)

    def run(deterministic):
        program = Program(drawn, handle)
        tensors = {name: program.bound(name, drawn.memory[name]) for name in ("q", "k", "v", "dO")}
        tensors |= {"o": program.bound("o", o), "stats": program.bound("stats", stats)}
        made = program.graph.sdpa_fp8_backward(**tensors, **program.scales([n for n in drawn.scales if n != "scale_o"]),
                                               **program.options(), use_deterministic_algorithm=deterministic)
        results = [program.written(made[i], tensors["q" if i == 0 else "k"].get_dim(), E4M3) for i in range(3)]
        for i in range(3, 7):
            program.written(made[i], (1, 1, 1, 1), np.float32)
        program.run()
        return results

    first = run(True)
    for other in (run(True), run(True)):
        for one, again in zip(first, other, strict=True):
            assert (one.view(np.uint8) == again.view(np.uint8)).all()
    for one, any_order in zip(first, run(False), strict=True):
        one, any_order = one.astype(np.float64), any_order.astype(np.float64)
        assert not np.isnan(one).any()
        # A code's neighbour where the order decides; most are the same.
        assert (np.abs(one - any_order) <= np.abs(one) / 7 + 2.0**-8).all()
        assert (one == any_order).mean() > 0.98


def test_backward_of_some(handle):
    """dQ alone, with the largest dP, which sums of dK find."""
    drawn = contract.Drawn(WIDE, np.random.default_rng(3))
    o, stats, *_ = drawn.forward(E4M3)
    stats = stats.astype(np.float32)
    program = Program(drawn, handle)
    tensors = {name: program.bound(name, drawn.memory[name]) for name in ("q", "k", "v", "dO")}
    tensors |= {"o": program.bound("o", o), "stats": program.bound("stats", stats)}
    made = program.graph.sdpa_fp8_backward(**tensors, **program.scales([n for n in drawn.scales if n != "scale_o"]),
                                           **program.options())
    d_q = program.written(made[0], (2, 4, 300, 128), E4M3)
    amax = program.written(made[6], (1, 1, 1, 1), np.float32)
    program.run()
    naive, _ = drawn.backward(o, stats.astype(np.float64), (E4M3,) * 3)
    with in_f64():
        exact, amaxes = drawn.backward(o, stats.astype(np.float64), (E4M3,) * 3)
    near(d_q, naive["dQ"], exact["dQ"], "dQ")
    np.testing.assert_allclose(amax.item(), amaxes["dP"], rtol=2e-2)
