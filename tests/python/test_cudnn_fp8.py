"""Attention on FP8 operands, forward and backward, against NumPy in f64, which takes the contract's steps one by one."""

import itertools

import heddle.cudnn as cudnn
import ml_dtypes
import numpy as np
import pytest
from fp8_program import CASES, E4M3, E5M2, PAGES, PLAIN, Drawn, Program, run_backward, run_forward


@pytest.fixture
def cpu():
    return cudnn.create_handle(device="cpu")


@pytest.fixture(params=["", "portable"])
def isa(request, monkeypatch):
    """The machine's best instruction set, and none."""
    monkeypatch.setenv("HEDDLE_CPU_ISA", request.param)


def same_codes(made, true, what):
    """Codes as the contract has them, but where f32 and f64 differ enough to round a number on the way the other way."""
    if made.dtype.itemsize > 1:
        step = float(ml_dtypes.finfo(made.dtype).eps)
        near = np.abs(made.astype(np.float64) - true.astype(np.float64))
        assert (near <= 4e-2 * np.abs(true.astype(np.float64)).max() + step).all(), what
        made, true = made.astype(E4M3), true.astype(E4M3)
    assert not np.isnan(made.astype(np.float32)).any(), what

    def ordered(codes):
        bits = codes.view(np.uint8).astype(int)
        return np.where(bits >= 128, 128 - bits, bits)

    apart = np.abs(ordered(made) - ordered(true))
    # A number near 0 is a difference of larger ones: codes there are apart by what those rounded.
    magnitude = np.abs(true.astype(np.float64))
    error = np.abs(made.astype(np.float64) - true.astype(np.float64))
    assert ((apart <= 2) | (error <= 0.02 * magnitude.max())).all(), f"{what}: {apart.max()} codes apart"
    assert (apart > 0).mean() <= 0.01, f"{what}: {(apart > 0).mean()} of the codes differ"


# Results of wider types are written alike, whatever the case.
@pytest.mark.parametrize("case, o_kind", [*itertools.product(CASES | PAGES, (E4M3, E5M2)), ("full", ml_dtypes.bfloat16),
                                          ("full", np.float32)])
def test_forward(case, o_kind, cpu, isa):
    drawn = Drawn((CASES | PAGES)[case], np.random.default_rng(len(case)))
    o, stats, amax_s, amax_o = run_forward(drawn, cpu, o_kind)
    true_o, true_stats, true_amax_s, true_amax_o = drawn.forward(o_kind)
    same_codes(o, true_o, "O")
    np.testing.assert_allclose(stats, true_stats, rtol=2e-6, atol=2e-5)
    np.testing.assert_allclose(amax_s.item(), true_amax_s, rtol=1e-5)
    np.testing.assert_allclose(amax_o.item(), true_amax_o, rtol=2e-2 if case == "huge scores" else 2e-3)


@pytest.mark.parametrize("kinds", [(E4M3,) * 3, (E5M2, E5M2, E4M3)])
@pytest.mark.parametrize("case", CASES)
def test_backward(case, kinds, cpu, isa):
    drawn = Drawn(CASES[case], np.random.default_rng(len(case)))
    o, stats, *_ = drawn.forward(E4M3)
    for n, length in enumerate(drawn.lq):
        o[n, :, length:] = np.nan
    stats = stats.astype(np.float32)
    made, amaxes = run_backward(drawn, cpu, o, stats, kinds)
    true, true_amaxes = drawn.backward(o, stats.astype(np.float64), kinds)
    for name in made:
        same_codes(made[name], true[name], name)
    for name, amax in amaxes.items():
        np.testing.assert_allclose(amax.item(), true_amaxes[name], rtol=1e-2, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("descale", [1e7, 1e30])
def test_scores_that_f32_has_no_fractions_of(descale, cpu, isa):
    """The row's largest weighs 1 in the backward too: its score is rounded there as it was in the statistics."""
    drawn = Drawn(PLAIN | {"scales": {"descale_q": descale}}, np.random.default_rng(11))
    o, stats, amax_s, _ = run_forward(drawn, cpu, E4M3)
    assert amax_s.item() == 1
    made, amaxes = run_backward(drawn, cpu, o, stats, (E4M3,) * 3)
    true, true_amaxes = drawn.backward(o, drawn.weights()[1], (E4M3,) * 3)
    same_codes(made["dV"], true["dV"], "dV")
    np.testing.assert_allclose(amaxes["dV"].item(), true_amaxes["dV"], rtol=1e-2)


def test_rows_of_scores_of_minus_infinity(cpu, isa):
    """As rows without a key: nothing weighs anything."""
    drawn = Drawn(PLAIN | {"kinds": (E5M2,) * 4, "skv": 5}, np.random.default_rng(12))
    drawn.memory["q"][0, 1, :, 0] = 1
    drawn.memory["k"][0, 1, :, 0] = -np.inf
    o, stats, amax_s, amax_o = run_forward(drawn, cpu, E5M2)
    assert (o[0, 1] == 0).all() and (stats[0, 1] == -np.inf).all()
    o, stats = o.astype(np.float64), stats.astype(np.float64)
    assert np.isfinite(o).all() and np.isfinite(stats[0, 0]).all() and 0 < amax_s.item() <= 1 and np.isfinite(amax_o.item())


@pytest.mark.parametrize("o_kind", [ml_dtypes.bfloat16, np.float32, E5M2])
def test_backward_of_an_o_of_another_type(o_kind, cpu):
    """As a forward that wrote a wider type left it, times its scale."""
    drawn = Drawn(CASES["grouped"], np.random.default_rng(9))
    o, stats, *_ = drawn.forward(o_kind)
    stats = stats.astype(np.float32)
    made, _ = run_backward(drawn, cpu, np.ascontiguousarray(o), stats, (E4M3,) * 3)
    true, _ = drawn.backward(o, stats.astype(np.float64), (E4M3,) * 3)
    for name in made:
        same_codes(made[name], true[name], name)


def test_weights_of_the_engines_own(cpu):
    drawn = Drawn(PLAIN, np.random.default_rng(5))
    program = Program(drawn, cpu)
    q, k, v = (program.bound(name, drawn.memory[name]) for name in "qkv")
    o, stats, amax_o = program.graph.sdpa_fp8(q, k, v, **program.scales(("descale_q", "descale_k", "descale_v")),
                                              attn_scale=drawn.attn_scale, is_inference=True)
    assert stats is None
    made = program.written(o, (2, 4, 77, 48), np.float32)
    amax = program.written(amax_o, (1, 1, 1, 1), np.float32)
    program.run()
    true = drawn.weights()[0] @ drawn.numbers("v")
    np.testing.assert_allclose(made, true, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(amax.item(), np.abs(true).max(), rtol=1e-5)


@pytest.mark.parametrize("options, sentence", [
    ({"bias": True}, "a bias is given"), ({"dropout": True}, "dropout is given"), ({"use_alibi_mask": True}, "alibi_mask"),
    ({"sink_token": True}, "a sink is given"), ({"fn": lambda graph, score: graph.neg(score)}, "a score_mod is given")])
def test_what_changes_scores_is_declined(options, sentence, cpu):
    drawn = Drawn(PLAIN, np.random.default_rng(0))
    program = Program(drawn, cpu)
    q, k, v = (program.bound(name, drawn.memory[name]) for name in "qkv")
    one = program.bound("one", np.ones((1, 1, 1, 1), np.float32))
    made = {"bias": one, "sink_token": one, "dropout": (0.5, one, one)}
    options = {name: made.get(name, value) for name, value in options.items()}
    program.graph.sdpa_fp8(q, k, v, one, one, one, one, one, one, generate_stats=False, **options)[0].set_output(True)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=sentence):
        program.graph.validate()


def test_arguments(cpu):
    graph = cudnn.pygraph(handle=cpu)
    x, one = graph.tensor(dim=(1, 1, 8, 16), data_type=cudnn.data_type.FP8_E4M3), graph.tensor(dim=(1, 1, 1, 1))
    with pytest.raises(TypeError, match="has no argument 'window'"):
        graph.sdpa_fp8(x, x, x, one, one, one, generate_stats=False, window=3)
    with pytest.raises(ValueError, match="given by two names"):
        graph.sdpa_fp8(x, x, x, one, one, one, generate_stats=False, left_bound=3, diagonal_band_left_bound=4)
    with pytest.raises(ValueError, match="expected all or none"):
        graph.sdpa_fp8(x, x, x, one, one, one, one, generate_stats=False)
    with pytest.raises(ValueError, match="neither is given"):
        graph.sdpa_fp8(x, x, x, one, one, one)
    with pytest.raises(TypeError, match="descale_v is None"):
        graph.sdpa_fp8(x, x, x, one, one, None, generate_stats=False)


def test_older_names(cpu):
    """sliding_window, left_bound and right_bound say what the bands say."""
    drawn = Drawn(CASES["window"], np.random.default_rng(3))
    results = []
    for left, right in itertools.product(("sliding_window", "left_bound", "diagonal_band_left_bound"),
                                         ("right_bound", "diagonal_band_right_bound")):
        program = Program(drawn, cpu)
        q, k, v = (program.bound(name, drawn.memory[name]) for name in "qkv")
        scales = program.scales(("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o"))
        made = program.graph.sdpa_fp8(q, k, v, **scales, **{left: 11, right: 3}, generate_stats=False)
        results.append(program.written(made[0], (2, 4, 128, 48), E4M3))
        program.run()
    assert all((one.view(np.uint8) == results[0].view(np.uint8)).all() for one in results)
