"""heddle.gqa on an NVIDIA GPU beside the operator's definition in f64: the cases that the CPU's tests hold."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "python"))
from test_gqa import BEYOND, CASES, SHARED, draw, draw_shared, judge, judge_in_place  # noqa: E402

torch = pytest.importorskip("torch")

DEVICE = "cuda"
# Of sums that are rounded once; caches hold them rounded.
TOLERANCES = {np.dtype(np.float32): {"rtol": 1e-4, "atol": 1e-5}, np.dtype(np.float16): {"rtol": 2e-3, "atol": 2e-3},
              np.dtype(ml_dtypes.bfloat16): {"rtol": 2e-2, "atol": 2e-2}}
# More than the decode kernel's least keys, and head dims that it takes codes of.
LONG = {f"{name} of many keys": dict(past=700, capacity=1000, heads=8, rotary=32, head_size=64, **options)
        for name, options in {"numbers": {}, "int8": dict(bits=8, per="PER_CHANNEL"), "int4": dict(bits=4, per="PER_CHANNEL"),
                              "int8 window": dict(bits=8, local_window_size=130), "sink": dict(sink=True),
                              "four rows": dict(rows=4, padded=True), "packed int4": dict(packed=True, bits=4)}.items()}


@pytest.fixture(scope="session", autouse=True)
def gpu():
    return torch.zeros(1, device=DEVICE).device


def execute(plan, arrays):
    """Runs the plan with copies of the arrays on the device, and brings back what it has left there."""
    copies = {}
    for uid, array in arrays.items():
        same = next((other for other in copies if arrays[other] is array), None)
        copies[uid] = copies[same] if same is not None else torch.from_numpy(array.reshape(-1).view(np.uint8).copy()).to(DEVICE)
    workspace = torch.full((max(plan.workspace_bytes, 1),), 255, dtype=torch.uint8, device=DEVICE)
    stream = torch.cuda.current_stream().cuda_stream if DEVICE == "cuda" else None
    plan.execute({uid: copy.data_ptr() for uid, copy in copies.items()}, workspace.data_ptr(), stream)
    for uid, array in arrays.items():
        array.reshape(-1).view(np.uint8)[...] = copies[uid].cpu().numpy()


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", CASES | BEYOND | LONG, ids=lambda name: name.replace(" ", "_"))
def test_is_what_the_operator_says(case, dtype):
    node = draw(1, **(CASES | BEYOND | LONG)[case], dtype=dtype)
    judge(node, node.by_heddle(device=DEVICE, execute=execute), TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("case", ["decode", "prompt of one length", "soft cap", "sink", "smooth", "window", "bias under a cap",
                                  "numbers of many keys"], ids=lambda name: name.replace(" ", "_"))
def test_gives_scores_or_probabilities(case, mode, dtype):
    node = draw(8, **(CASES | LONG)[case] | {"ragged": False, "qk_output": mode}, dtype=dtype)
    ours = node.by_heddle(device=DEVICE, execute=execute)
    scores = np.zeros(ours["output_qk"].shape)
    node.output_from(ours["present_key"].astype(np.float64), ours["present_value"].astype(np.float64), scores)
    np.testing.assert_allclose(ours["output_qk"].astype(np.float64), scores, **TOLERANCES[dtype])


@pytest.mark.parametrize("case", ["decode in a larger buffer", "packed decode", "prompt into a buffer", "int4 per channel",
                                  "padded chunks in a buffer"])
def test_in_place_gives_the_same(case):
    node = draw(3, **CASES[case])
    judge_in_place(node, *(node.by_heddle(in_place, device=DEVICE, execute=execute) for in_place in (False, True)))


@pytest.mark.parametrize("case", SHARED)
def test_a_cache_that_is_shared_is_handed_on(case):
    node, exact = draw_shared(31, **SHARED[case])
    ours, together = (node.by_heddle(in_place, device=DEVICE, execute=execute) for in_place in (False, True))
    for name, present in exact.items():
        np.testing.assert_array_equal(ours[name], present)
        np.testing.assert_array_equal(together[name], node.inputs[name.replace("present", "past")])
    np.testing.assert_array_equal(together["output"], ours["output"])
