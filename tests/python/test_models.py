"""What tests/models/run takes for a failure."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "programs"), str(ROOT / "tests" / "models")]

from definition import program  # noqa: E402
from held_out import complaints, counted  # noqa: E402

RETURNS_WEIGHTS = {"left": (0, 1), "because": "its second layer returns its weights"}
TRAINED = program("f32", forwards=2, backwards=2, **RETURNS_WEIGHTS)(lambda: None)


def found(forwards, backwards, outcome="right", left=()):
    kinds = ["attention_forward"] * forwards + ["attention_backward"] * backwards
    fusions = [{"kind": kind} for kind in kinds]
    return {"outcome": outcome, "fusions": fusions, "refusals": ["it is so"], "complaints": [], "left": list(left)}


def test_as_many_as_expected():
    assert complaints(found(2, 1), TRAINED) == []
    assert complaints(found(2, 2), TRAINED) == []


def test_fewer_than_expected():
    for n in ((1, 1), (2, 0), (0, 0)):
        assert complaints(found(*n), TRAINED) == ["2 forwards and 1 backwards are to be fused", "it is so"]


def test_arrays_that_only_attention_needed():
    """Where some attention is left alone, as is expected here, its own are there."""
    whole = program("f32", forwards=2, backwards=2)(lambda: None)
    assert complaints(found(2, 2, left=["%p is for no call"]), whole) == ["%p is for no call"]
    assert complaints(found(2, 1, left=["%p is for no call"]), TRAINED) == []


def test_calls_beyond_the_instances_stand_for_no_others():
    assert counted(found(5, 0), TRAINED) == (2, 0)


@pytest.mark.parametrize("outcome", ["wrong", "raised", "hung", "no program", "no figures"])
def test_an_outcome_without_right_values(outcome):
    assert complaints(found(2, 2, outcome), TRAINED)[0] == outcome


def test_what_is_left_alone_has_a_reason():
    with pytest.raises(AssertionError):
        program("f32", forwards=2, left=(1, 0))


def test_words_that_no_program_has():
    command = [sys.executable, ROOT / "tests/models/held_out.py", "flax_lines"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2 and "flax_lines" in run.stderr
