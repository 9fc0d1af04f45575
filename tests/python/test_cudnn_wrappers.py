"""heddle.cudnn: Graph, jit, graph and graph_cache, device properties, YaRN."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor

import heddle.cudnn as cudnn
import ml_dtypes
import numpy as np
import pytest
from cudnn_program import drawn, forward, near, scores
from heddle.cudnn import yarn

FLOAT, HALF = cudnn.data_type.FLOAT, cudnn.data_type.HALF
TYPES = {"io_data_type": FLOAT, "intermediate_data_type": FLOAT, "compute_data_type": FLOAT}
IO = (2, 3, 21, 16)


@pytest.fixture
def rng():
    return np.random.default_rng(20266)


@pytest.fixture
def cpu():
    return cudnn.create_handle(device="cpu")


def attend(cpu, arrays, outputs=("attention::O",), **options):
    with cudnn.Graph(handle=cpu, inputs=options.pop("inputs", ["attention::q", "attention::k", "attention::v"]),
                     outputs=list(outputs), **TYPES, **options) as graph:
        q, k, v = arrays
        o, stats = graph.sdpa(q=q, k=k, v=v, attn_scale=0.25, generate_stats=len(outputs) > 1, name="attention")
        o.set_output(True)
        if stats is not None:
            stats.set_output(True).set_data_type(FLOAT).set_name("log-sum-exp")
    return graph


def test_called_with_arrays_it_makes_the_outputs(rng, cpu):
    arrays = [drawn(rng, *IO) for _ in range(3)]
    graph = attend(cpu, arrays, ["attention::O", "log-sum-exp"])
    others = [drawn(rng, *IO) for _ in range(3)]
    for given in (arrays, others):
        o, stats = graph(*given, handle=cpu)
        truth, lse, *_ = forward(scores(*given[:2], 0.25), given[2])
        near(o, truth), near(stats, lse)
    assert isinstance(attend(cpu, arrays, inputs=arrays)(*arrays), np.ndarray)


def test_many_threads_call_one_graph(rng, cpu):
    """Each has a workspace of its own."""
    dims = (2, 4, 200, 64)
    arrays = [[drawn(rng, *dims) for _ in range(3)] for _ in range(4)]
    graph = attend(cpu, arrays[0])
    expected = [graph(*given) for given in arrays]
    with ThreadPoolExecutor(len(arrays)) as threads:
        found = list(threads.map(lambda n: graph(*arrays[n % 4]), range(120)))
    for n, o in enumerate(found):
        np.testing.assert_array_equal(o, expected[n % 4])


def test_called_with_a_dict_of_names(rng, cpu):
    arrays = [drawn(rng, *IO) for _ in range(3)]
    graph = attend(cpu, arrays, ["attention::O", "log-sum-exp"], workspace_alloc=False)
    workspace = np.empty(graph.get_workspace_size(), np.uint8)
    stats = np.full((*IO[:3], 1), np.nan, np.float32)
    given = {"attention::q": arrays[0], "attention::k": arrays[1], "attention::v": arrays[2], "log-sum-exp": stats}
    made = graph(given, workspace=workspace)
    truth, lse, *_ = forward(scores(*arrays[:2], 0.25), arrays[2])
    assert made is given and made["log-sum-exp"] is stats
    near(made["attention::O"], truth), near(stats, lse)
    # An output that the program named is there by that name, too.
    del given["log-sum-exp"], given["attention::O"]
    made = graph(given, workspace=workspace)
    near(made["log-sum-exp"], lse)
    assert made["log-sum-exp"] is made["attention::Stats"]
    with pytest.raises(ValueError, match="without a workspace, expected one of"):
        graph(given)
    with pytest.raises(ValueError, match="missing an array for the input"):
        graph({"attention::q": arrays[0]}, workspace=workspace)


def test_ops_one_after_the_other_in_bfloat16(rng, cpu):
    """RMSNorm, then attention of its result; a number passed by value, and dropout's tuple."""
    x, scale = drawn(rng, 2, 3, 21, 16, dtype=ml_dtypes.bfloat16), drawn(rng, 1, 1, 1, 16, dtype=ml_dtypes.bfloat16)
    seed, offset = np.full((1, 1, 1, 1), 3, np.int64), np.zeros((1, 1, 1, 1), np.int64)
    with cudnn.Graph(handle=cpu, **(TYPES | {"io_data_type": ml_dtypes.bfloat16})) as graph:
        y, _ = graph.rmsnorm(cudnn.norm_forward_phase.INFERENCE, x, scale, None, np.full((1, 1, 1, 1), 1e-5, np.float32))
        y.set_output(True)
        o, _ = graph.sdpa(y, y, y, generate_stats=False, dropout=(0.0, seed, offset))
        o.set_output(True)
    made = graph({"rmsnorm.0::input": x, "rmsnorm.0::scale": scale, "rmsnorm.0::4": np.full((1, 1, 1, 1), 1e-5, np.float32),
                  "sdpa.0::dropout::1": seed, "sdpa.0::dropout::2": offset})
    x64 = x.astype(np.float64)
    y, true = made["rmsnorm.0::Y"], x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-5) * scale.astype(np.float64)
    near(y, true, ml_dtypes.bfloat16)
    near(made["sdpa.0::O"], forward(scores(y, y), y)[0], ml_dtypes.bfloat16)


def test_a_decline_leaves_the_with(rng, cpu):
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="MXFP8"), cudnn.Graph(handle=cpu, **TYPES) as graph:
        x = drawn(rng, *IO)
        graph.sdpa_mxfp8(q=x, k=x, v=x)
    with pytest.raises(ZeroDivisionError), cudnn.Graph(handle=cpu, **TYPES):
        1 / 0


@pytest.mark.parametrize("wrong, kind, sentence", [
    (lambda g, x: cudnn.Graph(inputs="q"), TypeError, "inputs is of type str, expected a list"),
    (lambda g, x: cudnn.Graph(handle="mine"), TypeError, "handle is of type str"),
    (lambda g, x: g.validate(), RuntimeError, "validate is not for a cudnn.Graph"),
    (lambda g, x: g.attend(), AttributeError, "has no attend"),
    (lambda g, x: g(x), RuntimeError, "has not been built"),
    (lambda g, x: (g.rope(x, x, name="a"), g.rope(x, x, name="a")), ValueError, "'a' is given to two ops"),
])
def test_what_is_wrong_gets_its_sentence(rng, wrong, kind, sentence):
    with pytest.raises(kind) as refusal:
        wrong(cudnn.Graph(**TYPES), drawn(rng, *IO))
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("change, sentence", [
    ({"inputs": ["attention::q", "attention::k"]}, "is bound and neither among inputs nor outputs"),
    ({"inputs": ["attention::q", "attention::k", "attention::w"]}, "inputs\\[2\\] is 'attention::w', expected a tensor of the"),
    ({"inputs": ["attention::q"] * 3}, "a second time"),
    ({"outputs": ["attention::P"]}, "outputs\\[0\\] is 'attention::P', expected a tensor"),
])
def test_wrong_orders(rng, cpu, change, sentence):
    arrays = [drawn(rng, *IO) for _ in range(3)]
    with pytest.raises(ValueError, match=sentence):
        attend(cpu, arrays, **change)
    graph = attend(cpu, arrays)
    with pytest.raises(ValueError, match="called with 2 arrays, expected 3"):
        graph(*arrays[:2])
    with pytest.raises(TypeError, match="is of type str, expected an array"):
        graph(*arrays[:2], "v")


def test_jit_and_a_cache_of_graphs(rng, cpu):
    calls = []

    @cudnn.jit(heur_modes=[cudnn.heur_mode.A])
    @cudnn.graph_cache(key_fn=lambda q, causal: (q.shape, causal))
    def lookup(q, causal):
        calls.append(causal)
        with cudnn.graph(cpu, io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT) as (g, _):
            tensors = [g.tensor_like(q) for _ in range(3)]
            o, _ = g.sdpa(*tensors, use_causal_mask=causal, generate_stats=False)
            o.set_output(True)
            return g, [*tensors, o]

    arrays = [drawn(rng, *IO) for _ in range(3)]
    for causal in (False, True, False, True):
        g, uids = lookup(arrays[0], causal)
        assert all(type(uid) is int for uid in uids) and len(set(uids)) == 4
        o = np.full(IO, np.nan, np.float32)
        g.execute(dict(zip(uids, (*arrays, o), strict=True)), np.empty(g.get_workspace_size(), np.uint8), handle=cpu)
        near(o, forward(scores(*arrays[:2], hidden=np.triu(np.ones((21, 21), bool), 1) & causal), arrays[2])[0])
    assert calls == [False, True]


def test_a_cache_forgets_the_oldest():
    kept = cudnn.graph_cache(key_fn=lambda n: n, maxsize=2)(lambda n: object())
    first, second = kept(1), kept(2)
    kept(3)
    assert kept(2) is second and kept(1) is not first


@pytest.mark.parametrize("wrong", [lambda: cudnn.jit(lambda: None), lambda: cudnn.jit(heur_modes=["A"]), lambda: cudnn.jit([])(id),
                                   lambda: cudnn.graph_cache(3), lambda: cudnn.graph_cache(len, maxsize=1.5),
                                   lambda: cudnn.jit()(lambda: 3)(), lambda: cudnn.jit()(lambda: (cudnn.pygraph(), [3]))()])
def test_what_is_no_function_of_graphs(wrong):
    with pytest.raises(TypeError):
        wrong()


def test_programs_that_import_cudnn(monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", cudnn)
    names = {}
    exec("import cudnn\nfrom cudnn.yarn import compute_yarn_freqs\nfrom cudnn import Graph, data_type", names)
    assert names["data_type"].HALF is cudnn.data_type.HALF and names["compute_yarn_freqs"](3, 8, device="cpu")[1] == 1
    monkeypatch.delitem(sys.modules, "cudnn.yarn")


def test_device_properties():
    given = cudnn.create_device_properties('{"sm_version": 90, "sm_count": 132}')
    again = cudnn.create_device_properties(given.serialize())
    assert (again.sm_version, again.sm_count) == (90, 132)
    for wrong, kind in (("{}", ValueError), ("x", ValueError), (1.5, TypeError)):
        with pytest.raises(kind):
            cudnn.create_device_properties(wrong)


def interpolated(j, head_dim, base, factor, longest, fast, slow):
    """A column's frequency by its turns within the trained context, as the paper's section 3.2 has it, with the columns at
    which the ramp begins and ends rounded outwards."""
    f = base**(-2 * j / head_dim)
    turns = [longest / (2 * math.pi) * base**(-2 * n / head_dim) for n in range(head_dim)]
    first = max([n for n in range(head_dim) if turns[n] >= fast], default=0)
    last = min([n for n in range(head_dim) if turns[n] <= slow], default=head_dim - 1)
    share = min(max((j - first) / (last - first), 0), 1)
    return f * (1 - share) + f / factor * share


@pytest.mark.parametrize("numbers", [{}, {"scaling_factor": 40.0}, {"scaling_factor": 8.0, "base": 500000.0, "beta_fast": 16.0,
                                                                    "original_max_position": 8192}])
def test_yarn(numbers):
    pytest.importorskip("numpy")
    inverse = np.asarray(yarn.compute_yarn_inv_freq(64, device="cpu", **numbers))
    base, factor = numbers.get("base", 10000.0), numbers.get("scaling_factor", 1.0)
    longest, fast = numbers.get("original_max_position", 4096), numbers.get("beta_fast", 32.0)
    true = [base**(-j / 32) if factor <= 1 else interpolated(j, 64, base, factor, longest, fast, 1.0) for j in range(32)]
    np.testing.assert_allclose(inverse, true, rtol=1e-6)
    freqs, mscale = yarn.compute_yarn_freqs(50, 64, device="cpu", **numbers)
    freqs = np.asarray(freqs)
    assert freqs.shape == (50, 1, 1, 64) and freqs.dtype == np.float32 and (freqs[..., 32:] == 0).all()
    np.testing.assert_allclose(freqs[:, 0, 0, :32], np.outer(np.arange(50), true), rtol=1e-6)
    assert mscale == pytest.approx(1 if factor <= 1 else 0.1 * math.log(factor) + 1)
    both = yarn.compute_yarn_freqs(2, 64, device="cpu", mscale_all_dim_factor=1.0, **numbers)[1]
    assert both == pytest.approx(1) and yarn.yarn_get_mscale(40, 2) == pytest.approx(0.2 * math.log(40) + 1)


@pytest.mark.parametrize("wrong, kind", [
    (lambda: yarn.compute_yarn_inv_freq(63, device="cpu"), ValueError),
    (lambda: yarn.compute_yarn_freqs(0, 64, device="cpu"), ValueError),
    (lambda: yarn.compute_yarn_inv_freq(64, base=1, device="cpu"), ValueError), (lambda: yarn.yarn_get_mscale("40"), TypeError),
    (lambda: yarn.compute_yarn_inv_freq(64, beta_slow=0, scaling_factor=2, device="cpu"), ValueError),
    (lambda: yarn.compute_yarn_inv_freq(6.4, device="cpu"), TypeError)])
def test_wrong_numbers_of_yarn(wrong, kind):
    with pytest.raises(kind):
        wrong()
