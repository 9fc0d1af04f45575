"""No array as large as scores is left in a fused form that only the attention needed; and what finds such arrays finds them."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "programs"))

from large_arrays import large_arrays  # noqa: E402

# Where all axes are of one size, Q is as large as the scores.
FORMS = sorted(path.stem for path in (ROOT / "tests" / "data" / "hlo" / "forms").glob("*.hlo")
               if not path.stem.startswith("equal_axes_"))
# What the attentions of these forms read is made by the programs.
OPERANDS = {"by_content_and_position": ["bias"], "dropped_by_generator": ["dropout mask"], "shifted_by_numbers": ["bias"],
            "scan_dropped_by_generator": ["dropout mask"], "keys_of_content_and_of_positions": ["term"],
            "vector_of_each_pair_of_positions": ["term"], "products_of_two_pairs": ["term"],
            "largest_by_cells": ["term"], "dropped_by_a_draw_of_the_rate": ["dropout mask"],
            "given_to_be_dropped_and_masked_twice": ["dropout mask"], "bias_of_all_keys_but_the_first": ["bias"],
            "bias_of_rows_and_of_the_last": ["bias"], "bias_of_the_head_before": ["bias"]}
# The term of these holds a number of the row that the program takes of scores which it makes for that.
OWN_SCORES = ("largest_by_cells",)


@pytest.mark.parametrize("form", FORMS)
def test_forms(form, heddle, root, tmp_path):
    original = root / "tests" / "data" / "hlo" / "forms" / f"{form}.hlo"
    status, out, err = run(heddle, original, tmp_path)
    assert status == 0, err
    report = json.loads(out)
    if not report["fusions"] or report["refusals"]:
        pytest.skip("it holds an attention that is left alone")
    found = large_arrays((tmp_path / "fused.hlo").read_text(), report["fusions"])
    assert any(" = dot of " in left for left in found.left) == bool(found.left) == form.startswith(OWN_SCORES)
    expected = next((names for start, names in OPERANDS.items() if form.startswith(start)), [])
    assert found.operands == expected
    if all(min(f["q_len"], f["kv_len"]) > 1 for f in report["fusions"]):
        assert large_arrays(original.read_text(), report["fusions"]).left


def run(heddle, module, folder):
    done = heddle("fuse", module, "-o", folder / "fused.hlo", "--report", "-")
    return done.returncode, done.stdout, done.stderr


SIZES = [{"q_len": 4, "kv_len": 6, "batch": 2, "q_heads": 3}]
CALL = """call = f32[2,4,3,8]{3,2,1,0} custom-call(%s), custom_call_target="heddle", backend_config={graph = \
"{\\"heddle_graph\\":1,\\"tensors\\":[{\\"uid\\":1,\\"name\\":\\"Q\\"},{\\"uid\\":2,\\"name\\":\\"K\\"},{\\"uid\\":3,\\"name\\":\
\\"V\\"},{\\"uid\\":4,\\"name\\":\\"Bias 2\\"}],\\"nodes\\":[{\\"op\\":\\"sdpa\\",\\"q\\":1,\\"k\\":2,\\"v\\":3,\\"bias\\":4}]}"}"""


def module(*lines, root="f32[2,4,3,8]{3,2,1,0} negate(call)"):
    return "\n".join(["HloModule m", "", "ENTRY main {", "  q = f32[2,4,3,8]{3,2,1,0} parameter(0)", "  k = f32[2,6,3,8]{3,2,1,0} parameter(1)",
                      "  table = f32[2,3,4,6]{3,2,1,0} parameter(2)", *(f"  {line}" for line in lines),
                      f"  ROOT out = {root}", "}"])


BIAS = "bias = f32[2,3,4,6]{3,2,1,0} exponential(table)"
SCORES = "dot = f32[2,3,4,6]{3,2,1,0} dot(q, k), lhs_batch_dims={0,2}, rhs_batch_dims={0,2}"
WITH_BIAS, WITH_SCORES = (CALL % f"q, k, k, {what}" for what in ("bias", "dot"))


@pytest.mark.parametrize("text, left, operands", [
    (module(CALL % "q, k, k, table"), [], []),  # computed by nobody
    (module(BIAS, WITH_BIAS), [], ["bias"]),
    (module(BIAS, SCORES, WITH_BIAS), ["dot = dot of [2, 3, 4, 6] is for no call"], ["bias"]),
    (module(SCORES, WITH_SCORES), [], ["bias"]),  # of other products than the call's own
    (module("flat = f32[144]{0} sine(table)", "bias = f32[2,3,4,6]{3,2,1,0} reshape(flat)", WITH_BIAS,
            "weights = f32[144]{0} exponential(table)"),
     ["weights = exponential of [144] is for no call"], ["bias"]),
])
def test_what_an_array_is_for(text, left, operands):
    found = large_arrays(text, SIZES)
    assert (found.left, found.operands) == (left, operands)


def test_what_a_loop_carries():
    """An array goes into a loop and out of it by its place in the state; another one's place is none of its own."""
    body = """body {
  state = (f32[2,3,4,6]{3,2,1,0}, f32[2,3,4,6]{3,2,1,0}) parameter(0)
  first = f32[2,3,4,6]{3,2,1,0} get-tuple-element(state), index=0
  second = f32[2,3,4,6]{3,2,1,0} get-tuple-element(state), index=1
  more = f32[2,3,4,6]{3,2,1,0} exponential(second)
  ROOT next = (f32[2,3,4,6]{3,2,1,0}, f32[2,3,4,6]{3,2,1,0}) tuple(first, more)
}

goes_on {
  state.1 = (f32[2,3,4,6]{3,2,1,0}, f32[2,3,4,6]{3,2,1,0}) parameter(0)
  ROOT yes = pred[] constant(true)
}
"""
    lines = ["one = f32[2,3,4,6]{3,2,1,0} exponential(table)", "two = f32[2,3,4,6]{3,2,1,0} negate(table)",
             "both = (f32[2,3,4,6]{3,2,1,0}, f32[2,3,4,6]{3,2,1,0}) tuple(one, two)",
             "loop = (f32[2,3,4,6]{3,2,1,0}, /*index=1*/f32[2,3,4,6]{3,2,1,0}) while(both), condition=goes_on, body=body",
             "bias = f32[2,3,4,6]{3,2,1,0} get-tuple-element(loop), index=%d", WITH_BIAS]
    for index, left in ((0, ["more", "two"]), (1, ["one"])):
        text = module(*lines[:4], lines[4] % index, WITH_BIAS).replace("ENTRY", body + "\nENTRY")
        assert [sentence.split()[0] for sentence in large_arrays(text, SIZES).left] == left


def test_gradients_of_operands_and_what_is_returned():
    call = CALL.replace("call = f32[2,4,3,8]{3,2,1,0}", "calls = (f32[2,4,3,8]{3,2,1,0}, f32[2,3,4,6]{3,2,1,0})") % "q, k, k, bias"
    lines = [BIAS, call, "call = f32[2,4,3,8]{3,2,1,0} get-tuple-element(calls), index=0",
             "gradient = f32[2,3,4,6]{3,2,1,0} get-tuple-element(calls), index=1",
             "hot = f32[2,3,4,6]{3,2,1,0} cosine(table)", "part = f32[2,3]{1,0} dot(hot, %s)"]
    assert large_arrays(module(*lines[:5], lines[5] % "gradient"), SIZES).left == []
    assert large_arrays(module(*lines[:5], lines[5] % "table"), SIZES).left == ["hot = cosine of [2, 3, 4, 6] is for no call"]
    root = "(f32[2,4,3,8]{3,2,1,0}, f32[2,3,4,6]{3,2,1,0}) tuple(call, hot)"
    assert large_arrays(module(BIAS, WITH_BIAS, lines[4], root=root), SIZES).left == []
