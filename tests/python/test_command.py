"""The heddle command as its users meet it: what it prints, what it writes, how it ends."""

import json
import os
import subprocess
import time
from xml.etree import ElementTree

import numpy as np
import pytest

from heddle.jax import xla_module

DONE, BAD_INPUT, VERIFICATION_FAILED = 0, 2, 3
PROGRAMS = ("gpt_f32", "gpt_bf16", "gpt_checkpoint_f32", "gpt_checkpoint_bf16")


def program(root, name):
    return root / "tests" / "data" / "hlo" / f"{name}.hlo"


@pytest.mark.parametrize("name", PROGRAMS)
def test_fuse_verifies_and_xla_parses_the_result(heddle, root, tmp_path, name):
    fused, report = tmp_path / "fused.hlo", tmp_path / "report.json"
    run = heddle("fuse", program(root, name), "-o", fused, "--report", report, "--verify")
    assert run.returncode == DONE, run.stderr
    assert run.stdout == "" and run.stderr == ""
    said = json.loads(report.read_text())
    assert {fusion["kind"] for fusion in said["fusions"]} == {"attention_forward", "attention_backward"}
    assert said["verify"]["ok"] and said["verify"]["outputs"] == 25
    for fusion in said["fusions"]:
        assert (fusion["batch"], fusion["q_heads"], fusion["kv_heads"]) == (2, 8, 2)
        assert (fusion["q_len"], fusion["kv_len"], fusion["head_dim"]) == (96, 96, 32)
        assert fusion["mask"] == "causal" and fusion["scale"] == pytest.approx(32**-0.5)
        assert json.loads(fusion["graph"])["nodes"]
    assert fused.read_text().count('custom_call_target="heddle"') == len(said["fusions"])
    assert xla_module.parses(fused.read_text()) is None


DRAWS = ["ordinary", "hidden", "large", "small"]

MASKED_NUMBERS = """HloModule masked, entry_computation_layout={(f32[2,8]{1,0}, bf16[8]{0}, s32[2,8]{1,0})->f32[2,8]{1,0}}

ENTRY main {
  x = f32[2,8]{1,0} parameter(0)
  shift = bf16[8]{0} parameter(1)
  mask = s32[2,8]{1,0} parameter(2)
  zero = s32[] constant(0)
  zeros = s32[2,8]{1,0} broadcast(zero), dimensions={}
  shown = pred[2,8]{1,0} compare(mask, zeros), direction=NE
  wide = f32[8]{0} convert(shift)
  shifts = f32[2,8]{1,0} broadcast(wide), dimensions={1}
  moved = f32[2,8]{1,0} add(x, shifts)
  ROOT y = f32[2,8]{1,0} select(shown, moved, x)
}
"""


def test_verify_says_what_it_compared(heddle, root):
    run = heddle("fuse", program(root, "forms/mask_of_keys_grad"), "--verify")
    assert run.returncode == DONE, run.stderr
    table = [line.split() for line in run.stdout.split("Verified against f64")[1].splitlines()[2:6]]
    assert [row[0] for row in table] == DRAWS and all(row[-1] == "ok" for row in table)
    assert table[0][2] == "100.0%"
    said = json.loads(heddle("fuse", program(root, "forms/mask_of_keys_grad"), "--verify", "--report", "-").stdout)["verify"]
    assert [trial["inputs"] for trial in said["trials"]] == DRAWS
    for trial in said["trials"]:
        assert len(trial["outputs"]) == said["outputs"]
        for output in trial["outputs"]:
            assert output["ok"] and 0 <= output["row_error"] <= output["row_allowed"] < 0.01
            assert output["error"] <= said["max_relative_error"]


def test_verify_takes_inputs(heddle, tmp_path):
    (tmp_path / "masked.hlo").write_text(MASKED_NUMBERS)
    np.save(tmp_path / "x.npy", np.arange(16, dtype=np.float32).reshape(2, 8))
    np.save(tmp_path / "bits.npy", np.arange(8, dtype=np.uint16))
    np.save(tmp_path / "void.npy", np.arange(8, dtype=np.uint16).view("V2"))
    np.save(tmp_path / "mask.npy", np.ones((2, 8), np.int32))
    verify = lambda *inputs: heddle("fuse", tmp_path / "masked.hlo", "--verify", *(
        part for given in inputs for part in ("--input", f"{given[0]}={tmp_path / given[1]}.npy")))
    assert "ordinary" in verify(("x", "x"), (2, "mask")).stdout
    for shift in ("bits", "void"):
        run = verify(("x", "x"), ("shift", shift), (2, "mask"))
        assert run.returncode == DONE and "the given" in run.stdout and "ordinary" not in run.stdout

    np.save(tmp_path / "nan.npy", np.full((2, 8), np.nan, np.float32))
    run = verify((0, "nan"))
    assert run.returncode == VERIFICATION_FAILED
    assert run.stderr.startswith(f"heddle: {tmp_path / 'masked.hlo'}: verification failed: output 0 (f32[2,8]) could not be compared")


def test_verify_refuses_inputs_that_do_not_fit(heddle, tmp_path):
    (tmp_path / "masked.hlo").write_text(MASKED_NUMBERS)
    np.save(tmp_path / "x.npy", np.zeros((2, 8), np.float32))
    np.save(tmp_path / "wide.npy", np.zeros((2, 9), np.float32))
    np.save(tmp_path / "double.npy", np.zeros((2, 8)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-1])

    def complaint(*arguments):
        run = heddle("fuse", tmp_path / "masked.hlo", *arguments)
        assert run.returncode == BAD_INPUT and run.stderr.count("\n") == 1 and run.stdout == ""
        return run.stderr.removeprefix("heddle: ").strip()

    known = "0 (x), 1 (shift), 2 (mask)"
    at = lambda name: tmp_path / f"{name}.npy"
    assert complaint("--verify", "--input", f"y={at('x')}") == (
        f"'y={at('x')}' names none of this module's parameters; NAME=FILE.npy or NUMBER=FILE.npy with one of {known} is allowed")
    assert complaint("--verify", "--input", "x").startswith("'x' names none of this module's parameters")
    assert complaint("--verify", "--input", f"x={at('wide')}") == "parameter 0 (x) takes f32 [2, 8], not f32 [2, 9]"
    assert complaint("--verify", "--input", f"x={at('double')}") == "parameter 0 (x) takes f32 [2, 8], not f64 [2, 8]"
    assert complaint("--verify", "--input", f"1={at('x')}") == "parameter 1 (shift) takes bf16 [8], not f32 [2, 8]"
    assert "63 bytes of elements, not what [2, 8] elements of f32 take" in complaint("--verify", "--input", f"x={at('cut')}")
    assert complaint("--verify", "--input", "x=absent.npy") == "absent.npy cannot be read: No such file or directory"
    twice = ("--input", f"x={at('x')}", "--input", f"0={at('x')}")
    assert complaint("--verify", *twice) == f"'0={at('x')}' gives parameter 0 a second time; once is allowed"
    assert complaint("--input", f"x={at('x')}") == "--input is given without --verify, which it is for"


@pytest.mark.parametrize("seed", ["-1", "1.5", "many", "18446744073709551616"])
@pytest.mark.parametrize("command", ["fuse", "run"])
def test_a_seed_is_a_whole_number_that_is_not_negative(heddle, root, command, seed):
    given = program(root, "gpt_f32") if command == "fuse" else root / "fuzz" / "seeds" / "graph_json" / "sdpa.json"
    run = heddle(command, given, "--seed", seed)
    assert run.returncode == BAD_INPUT
    assert f"the seed is '{seed}', a whole number from 0 to 18446744073709551615 is allowed" in run.stderr


def test_verify_gives_the_same_figures_for_the_same_seed(heddle, root):
    runs = [heddle("fuse", program(root, "gpt_f32"), "--verify", "--report", "-", "--seed", seed) for seed in (3, 3, 4)]
    figures = [json.loads(run.stdout)["verify"] for run in runs]
    assert figures[0] == figures[1] != figures[2]


def test_a_module_without_attention_is_written_as_it_was(heddle, tmp_path):
    text = ("HloModule plain, entry_computation_layout={(f32[4]{0})->f32[4]{0}}\n\nENTRY main {\n"
            "  x = f32[4]{0} parameter(0)\n  ROOT y = f32[4]{0} add(x, x)\n}\n\n")
    (tmp_path / "plain.hlo").write_text(text)
    run = heddle("fuse", tmp_path / "plain.hlo", "-o", "-")
    assert run.returncode == DONE
    assert run.stdout.strip() == text.strip()


def test_explain_names_what_is_fused_and_what_is_left(heddle, root):
    run = heddle("explain", program(root, "gpt_checkpoint_f32"))
    assert run.returncode == DONE
    assert "attention calls: 3" in run.stdout
    assert "causal" in run.stdout and "8/2" in run.stdout
    assert "with nothing to fuse: 1" in run.stdout and "Left as it was" not in run.stdout
    left = heddle("explain", root / "tests/data/hlo/forms/probabilities_returned.hlo").stdout
    assert "Left as it was:" in left


@pytest.mark.parametrize("command", ["fuse", "explain"])
def test_the_device_is_asked(heddle, root, command):
    """f32 has engines on the CPU; the GPU's say their own, or that there is no GPU."""
    run = heddle(command, program(root, "gpt_f32"), "--device", "cuda")
    assert run.returncode == DONE and "cuda: " in run.stdout
    assert "cuda: " not in heddle(command, program(root, "gpt_f32"), "--device", "cpu").stdout
    assert "rocm" in heddle(command, program(root, "gpt_f32"), "--device", "rocm").stderr


def test_explain_of_a_graph_says_which_engine_runs_it(heddle, root):
    run = heddle("explain", root / "fuzz" / "seeds" / "graph_json" / "rope_sdpa.json")
    assert run.returncode == DONE
    assert "cpu: runs it" in run.stdout and "cuda: " in run.stdout


def test_explain_of_an_architecture_needs_no_gpu(heddle, root):
    graph = root / "fuzz" / "seeds" / "graph_json" / "rope_sdpa.json"
    run = heddle("explain", graph, "--device", "cuda", "--arch", "sm_90a")
    assert run.returncode == DONE and "cpu: runs it" in run.stdout and "cuda: runs it" in run.stdout
    assert "Hopper kernel" in run.stdout and "kernel rope_rotations: 256 threads" in run.stdout
    run = heddle("explain", graph, "--device", "cuda", "--arch", "sm_80")
    assert "general kernel" in run.stdout and "not Hopper forward: cuda: sm_80 is no Hopper" in run.stdout
    run = heddle("explain", program(root, "gpt_bf16"), "--device", "cuda", "--arch", "sm_90a")
    assert run.returncode == DONE and "cuda: " not in run.stdout
    assert "--device cuda" in heddle("explain", graph, "--arch", "sm_90a").stderr
    assert "sm_90a" in heddle("explain", graph, "--device", "cuda", "--arch", "sm_90").stderr
    assert "The architecture is '', expected sm_80" in heddle("explain", graph, "--device", "cuda", "--arch", "").stderr


@pytest.mark.parametrize("ending", ["svg", "png", "dot"])
def test_picture(heddle, root, tmp_path, ending):
    picture = tmp_path / f"layer.{ending}"
    run = heddle("fuse", program(root, "gpt_checkpoint_f32"), "--picture", picture)
    assert run.returncode == DONE, run.stderr
    start = {"svg": b"<?xml", "png": b"\x89PNG", "dot": b"digraph"}[ending]
    assert picture.read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["sdpa", "sdpa_backward", "sdpa_backward_of_pair", "sdpa_backward_of_stats", "rope",
                                  "rope_sdpa", "soft_cap", "rms_norm", "rms_norm_backward",
                                  "layer_norm", "layer_norm_backward", "instance_norm", "instance_norm_backward",
                                  "batch_norm", "batch_norm_backward", "pointwise"])
def test_run_compares_with_the_definition(heddle, root, name):
    run = heddle("run", root / "fuzz" / "seeds" / "graph_json" / f"{name}.json", "--runs", 1)
    assert run.returncode == DONE, run.stdout + run.stderr
    assert "ok" in run.stdout and "WRONG" not in run.stdout


def test_run_compares_f64_with_a_definition_in_f64(heddle, tmp_path):
    """Whose sums have another order than the engine's."""
    tensors = [{"uid": uid, "name": name, "dims": [2, heads, length, 32]}
               for uid, (name, heads, length) in enumerate((("q", 8, 64), ("k", 2, 200), ("v", 2, 200)), 1)]
    graph = {"heddle_graph": 1, "io_dtype": "f64", "tensors": [*tensors, {"uid": 4, "name": "o"}],
             "nodes": [{"op": "sdpa", "q": 1, "k": 2, "v": 3, "o": 4, "attn_scale": 0.125}]}
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    run = heddle("run", tmp_path / "graph.json", "--runs", 0)
    assert run.returncode == DONE and "WRONG" not in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize("positions", [[2, 1, 1, 1], [2, 1, 9, 1]])
def test_run_of_fewer_angles_than_rows(heddle, tmp_path, positions):
    """The nearest row serves, in the definition too."""
    tensors = [{"uid": 1, "name": "x", "dims": [2, 3, 9, 16]}, {"uid": 2, "name": "angles", "dims": [4, 1, 1, 16]},
               {"uid": 3, "name": "positions", "dims": positions, "dtype": "i32"}, {"uid": 4, "name": "y"}]
    graph = {"heddle_graph": 1, "io_dtype": "f32", "tensors": tensors,
             "nodes": [{"op": "rope", "x": 1, "freqs": 2, "positions": 3, "y": 4}]}
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    run = heddle("run", tmp_path / "graph.json", "--runs", 0)
    assert run.returncode == DONE, run.stdout + run.stderr


def test_run_of_packed_tensors_whose_rows_lie_differently_far_apart(heddle, tmp_path):
    """They share offsets; those of the widest are written within the memory of all."""
    packed = {"ragged_offset": 5}
    tensors = [{"uid": 1, "name": "q", "dims": [8, 1, 64, 8], "strides": [4096, 8, 64, 1], **packed},
               *({"uid": uid, "name": name, "dims": [8, 1, 64, 8]} for uid, name in ((2, "k"), (3, "v"))),
               {"uid": 4, "name": "o", "dims": [8, 1, 64, 8], "strides": [512, 8, 8, 1], **packed},
               {"uid": 5, "name": "offsets", "dims": [9, 1, 1, 1], "dtype": "i32"},
               *({"uid": uid, "name": name, "dims": [8, 1, 1, 1], "dtype": "i32"} for uid, name in ((6, "rows"), (7, "keys")))]
    graph = {"heddle_graph": 1, "io_dtype": "f32", "tensors": tensors,
             "nodes": [{"op": "sdpa", "q": 1, "k": 2, "v": 3, "o": 4, "padding_mask": True, "seq_len_q": 6, "seq_len_kv": 7}]}
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    run = heddle("run", tmp_path / "graph.json", "--runs", 0)
    assert run.returncode == DONE, run.stdout + run.stderr


@pytest.mark.parametrize("words", [("fuse", "m.hlo", "-o"), ("fuse", "m.hlo", "--report"), ("fuse", "m.hlo", "--picture"),
                                   ("bench", "cpu", "--json"), ("bench", "gqa", "--plot"), ("profile", "gqa", "--picture"),
                                   ("prebuild", "--archive")])
def test_a_file_to_write_has_a_name(heddle, words):
    run = heddle(*words, "")
    assert run.returncode == BAD_INPUT and "it is empty, expected the name of a file" in run.stderr, run.stderr


def test_what_is_no_file_is_not_replaced_by_one(heddle, root, tmp_path):
    graph, pipe = root / "fuzz" / "seeds" / "graph_json" / "sdpa.json", tmp_path / "pipe"
    os.mkfifo(pipe)
    run = heddle("run", graph, "--runs", 0, "--output", f"o={pipe}")
    assert run.returncode == BAD_INPUT and f"{pipe} is no file, expected one" in run.stderr, run.stderr
    assert pipe.is_fifo()


def test_run_reads_and_writes_npy(heddle, tmp_path):
    b, h, s, d = 1, 2, 5, 8
    tensor = lambda uid, name: {"uid": uid, "name": name, "dtype": "f32", "dims": [b, h, s, d]}
    graph = {"heddle_graph": 1, "tensors": [tensor(i + 1, n) for i, n in enumerate("qkvo")],
             "nodes": [{"op": "sdpa", "q": 1, "k": 2, "v": 3, "o": 4, "attn_scale": 0.5}]}
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((b, h, s, d), np.float32) for name in "qkv"}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    given = [part for name in "qkv" for part in ("--input", f"{name}={tmp_path / name}.npy")]
    run = heddle("run", tmp_path / "graph.json", *given, "--output", f"o={tmp_path / 'o.npy'}")
    assert run.returncode == DONE, run.stdout + run.stderr
    scores = np.einsum("bhqd,bhkd->bhqk", arrays["q"], arrays["k"]).astype(np.float64) * 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), weights @ arrays["v"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("option, texts", [("--input", ("x=a.npy", "x=b.npy")), ("--input", ("x=a.npy", "1=b.npy")),
                                           ("--output", ("y=a.npy", "y=b.npy"))])
def test_run_takes_each_array_once(heddle, root, option, texts):
    graph = root / "fuzz" / "seeds" / "graph_json" / "rms_norm.json"
    run = heddle("run", graph, *(part for text in texts for part in (option, text)))
    assert run.returncode == BAD_INPUT and f"'{texts[1]}' names a tensor a second time; once is allowed" in run.stderr, run.stderr
    assert not run.stdout


def test_doctor_and_bench_speak(heddle):
    assert "cpu engine" in heddle("doctor").stdout
    run = heddle("bench", "cpu", "--dtype", "f32", "--head-dim", 64, "--sequence", 64, "--json", "-")
    figures = json.loads(run.stdout)
    assert figures["machine"]["f32_gflops"] > 0
    assert len(figures["cells"]) == 4 and all(cell["seconds"] > 0 for cell in figures["cells"])


@pytest.mark.parametrize("name, value, said", [
    ("HEDDLE_DEVICE", "gpu", "HEDDLE_DEVICE is 'gpu', expected cpu or cuda"),
    ("HEDDLE_CACHE_BYTES", "5G", "HEDDLE_CACHE_BYTES is '5G', expected a number of bytes"),
    ("HEDDLE_GQA_DEBUG", "yes", "HEDDLE_GQA_DEBUG is 'yes', expected 0 or 1"),
    ("HEDDLE_DISABLE_FLASH_DECODE", "yes", "HEDDLE_DISABLE_FLASH_DECODE is 'yes', expected 0 or 1")])
def test_doctor_says_what_the_environment_has_wrong(heddle, monkeypatch, name, value, said):
    monkeypatch.setenv(name, value)
    assert said in " ".join(heddle("doctor").stdout.split())


def test_bench_of_gqa_has_a_cell_for_each_mode_and_cache(heddle, tmp_path):
    small = ("--heads", 4, "--kv-heads", 2, "--head-size", 32, "--keys", 8, 64)
    run = heddle("bench", "gqa", *small, "--json", tmp_path / "gqa.json", "--plot", tmp_path / "gqa.svg")
    assert run.returncode == DONE, run.stderr
    figures = json.loads((tmp_path / "gqa.json").read_text())
    assert figures["machine"]["read_gb_s"] > 0 and len(figures["cells"]) == 2 * 6 * 2
    for cell in figures["cells"]:
        assert cell["seconds"] >= cell["least_seconds"] > 0 and cell["path"] in ("decode", "flash")
        columns = {"f32": 4, "bf16": 2, "f16": 2, "int4": 0.5}.get(cell["cache"], 1) * 32
        assert cell["cache_gb_s"] * cell["seconds"] * 1e9 == pytest.approx(2 * 2 * cell["keys"] * columns)
        seen = cell["keys"] * (cell["keys"] + 1) / 2 if cell["mode"] == "prompt" else cell["keys"]
        assert cell["gflops"] * cell["seconds"] * 1e9 == pytest.approx(4 * 4 * 32 * seen)
    lines = ElementTree.parse(tmp_path / "gqa.svg").getroot().findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 12 and all(len(line.get("points").split()) == 2 for line in lines)
    assert run.stdout.count("\nprompt ") == 12 and run.stdout.count("\ndecode ") == 12


@pytest.mark.parametrize("arguments, sentence", [
    (("--kv-heads", 3), "num_heads must be a multiple of kv_num_heads. Got num_heads % kv_num_heads == 2"),
    (("--head-size", 20), "head_size must be a multiple of 8. Got head_size % 8 == 4"),
    (("--threads", 4096), "4096 threads; 1 to "),
], ids=str)
def test_bench_and_profile_of_gqa_refuse_in_words(heddle, arguments, sentence):
    for command in (("bench", "gqa", "--keys", 8), ("profile", "gqa", "--keys", 8)):
        run = heddle(*command, *arguments)
        assert run.returncode == BAD_INPUT and run.stderr.startswith(f"heddle: {sentence}")
    assert "--rows is 9, expected at most the 8 of --keys" in heddle("profile", "gqa", "--keys", 8, "--rows", 9).stderr


def test_profile_of_gqa_has_stages_that_sum_to_the_whole(heddle, tmp_path):
    run = heddle("profile", "gqa", "--cache", "int8", "--rows", 4, "--keys", 500, "--json", tmp_path / "gqa.json", "--picture",
                 tmp_path / "gqa.svg")
    assert run.returncode == DONE, run.stderr
    figures = json.loads((tmp_path / "gqa.json").read_text())
    assert [stage["name"] for stage in figures["stages"]] == ["append", "attention", "host"]
    assert sum(stage["share"] for stage in figures["stages"]) == pytest.approx(1, abs=0.2)  # medians of each by itself
    assert figures["path"].startswith("flash: ") and figures["cache_bytes"] == 2 * 8 * 500 * 128
    bars = ElementTree.parse(tmp_path / "gqa.svg").getroot().findall("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == 1 + 3  # the ground, too
    assert "served by flash: " in run.stdout and "\nappend " in run.stdout


def test_bench_and_profile_of_gqa_say_where_there_is_no_gpu(heddle, monkeypatch):
    if "cannot be loaded" not in (said := heddle("doctor").stdout) and "could not be loaded" not in said:
        pytest.skip("there is an NVIDIA driver")
    for command in ("bench", "profile"):
        run = heddle(command, "gqa", "--device", "cuda")
        assert run.returncode == BAD_INPUT and run.stdout == ""
        assert run.stderr.startswith("heddle: --device cuda takes an NVIDIA GPU: the NVIDIA driver could not be loaded")


@pytest.fixture
def gpu_that_runs_nothing(root, tmp_path, monkeypatch):
    """The driver and the compiler of the CUDA engine's tests."""
    fake = root / "build" / "tests" / "engine_cuda" / "fake"
    if not (fake / "libcuda.so.1").is_file() or not (fake / "libfake_nvrtc.so").is_file():
        pytest.skip("the driver of the CUDA engine's tests is not built")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake))
    monkeypatch.setenv("HEDDLE_NVRTC", str(fake / "libfake_nvrtc.so"))
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path / "kernels"))


@pytest.mark.parametrize("mode, keys, caches, path", [("decode", 1024, [], "decode"), ("prompt", 64, ["int4"], "flash")])
def test_bench_of_gqa_on_a_gpu(heddle, tmp_path, gpu_that_runs_nothing, mode, keys, caches, path):
    asked = ["--cache", *caches] if caches else []
    run = heddle("bench", "gqa", "--device", "cuda", "--mode", mode, "--keys", keys, *asked, "--json", tmp_path / "gqa.json",
                 "--plot", tmp_path / "gqa.svg")
    assert run.returncode == DONE, run.stderr
    figures = json.loads((tmp_path / "gqa.json").read_text())
    assert figures["machine"]["gpu"] == "No GPU" and figures["machine"]["copy_gb_s"] > 0 and "threads" not in figures["machine"]
    measured = caches or ["bf16", "f16", "int8", "int4", "f8e4m3"]
    assert [(cell["cache"], cell["path"]) for cell in figures["cells"]] == [(cache, path) for cache in measured]
    assert all(cell["seconds"] >= cell["least_seconds"] > 0 for cell in figures["cells"])
    assert "No GPU, sm_90; memory copied at" in run.stdout and "f32 peak" not in run.stdout and "float32" not in run.stdout
    assert "of copy rate" in run.stdout and f"\n{mode:6}  {measured[0]}" in run.stdout


def test_profile_of_gqa_on_a_gpu(heddle, tmp_path, gpu_that_runs_nothing):
    run = heddle("profile", "gqa", "--device", "cuda", "--batch", 8, "--json", tmp_path / "gqa.json", "--picture", tmp_path / "gqa.svg")
    assert run.returncode == DONE, run.stderr
    figures = json.loads((tmp_path / "gqa.json").read_text())
    assert [stage["name"] for stage in figures["stages"]] == ["append", "attention"] and figures["gpu"] == "No GPU"
    assert all("cuda" in stage["description"] for stage in figures["stages"])
    assert figures["cache_bytes"] == 2 * 8 * 8 * 8192 * 128 * 2
    assert "bf16 cache, batch 8" in run.stdout and "memory alone is copied at" in run.stdout and "\nhost" not in run.stdout


def test_doctor_looks_at_the_cache_and_makes_nothing(heddle, tmp_path, monkeypatch):
    said = lambda: " ".join(heddle("doctor").stdout.split("kernel cache")[1].split())
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path / "mistyped" / "heddle"))
    assert said() == f"{tmp_path}/mistyped/heddle is not there; the first kernel that is compiled makes it"
    monkeypatch.setenv("HEDDLE_CACHE_DIR", os.path.relpath(tmp_path))
    assert said().startswith(f"{os.getcwd()}/") and "0 kernels" in said()
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("text")
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path / "file" / "heddle"))
    assert said().endswith(f"what is not in it is compiled in every process anew: {tmp_path}/file is no folder")


@pytest.mark.parametrize("arguments", [("--help",), ("doctor",), ("explain", "gpt_f32"), ("fuse", "gpt_f32", "-o", "-")])
def test_what_cannot_be_printed_is_an_error(root, arguments):
    given = [program(root, word) if word in PROGRAMS else word for word in arguments]
    with open("/dev/full", "w") as full:
        run = subprocess.run([root / "build" / "bin" / "heddle", *given], stdout=full, stderr=subprocess.PIPE, text=True)
    assert run.returncode == BAD_INPUT
    assert run.stderr.startswith("heddle: standard output cannot be written") and run.stderr.count("\n") == 1


def test_help_of_every_subcommand(heddle):
    for command in ("fuse", "explain", "run", "bench", "profile", "doctor", "cache", "prebuild"):
        run = heddle(command, "--help")
        assert run.returncode == DONE and "Usage" in run.stdout
    assert heddle("--version").stdout.startswith("heddle ")


@pytest.mark.parametrize("arguments, expected", [(("weave",), "fuse, explain, run, bench, profile, doctor, cache, prebuild"),
                                                 (("cache", "weave"), "list, clear, prune")])
def test_a_word_that_is_no_subcommand_is_named(heddle, arguments, expected):
    run = heddle(*arguments)
    assert run.returncode == BAD_INPUT
    assert run.stderr == f"heddle: there is no subcommand 'weave', expected one of {expected}\n"


@pytest.mark.parametrize("command", ["fuse", "explain", "run"])
def test_a_command_without_subcommands_says_what_it_lacks(heddle, command):
    run = heddle(command, "--wrong")
    assert run.returncode == BAD_INPUT
    assert "is required" in run.stderr and "subcommand" not in run.stderr


def test_too_little_memory_is_a_sentence(heddle):
    run = heddle("bench", "cpu", "--sequence", "1048576", "--heads", "1024", "--head-dim", "1024", "--dtype", "f32", "--pass", "both")
    assert run.returncode == BAD_INPUT
    assert run.stderr == "heddle: there was not enough memory\n"


@pytest.mark.parametrize("arguments", [(), ("fuse",), ("weave",), ("fuse", "x.hlo", "--wrong"), ("run", "g", "--runs", "-1")])
def test_bad_usage_ends_with_2(heddle, arguments):
    run = heddle(*arguments)
    assert run.returncode == BAD_INPUT
    assert run.stderr


@pytest.mark.parametrize("command", ["fuse", "explain", "run"])
def test_a_file_that_is_not_there(heddle, tmp_path, command):
    run = heddle(command, tmp_path / "absent")
    assert run.returncode == BAD_INPUT
    assert run.stderr == f"heddle: {tmp_path / 'absent'} cannot be read: No such file or directory\n"


@pytest.mark.parametrize("command, most, in_words", [
    (("fuse",), 2**31, "2 GiB"), (("explain",), 2**31, "2 GiB"),
    (("run",), 2**24, "16 MiB"), (("prebuild", "--arch", "sm_80"), 2**24, "16 MiB")])
def test_what_has_no_end_or_is_too_large_is_not_read(heddle, tmp_path, command, most, in_words):
    """Reading it would take all memory there is."""
    run = heddle(*command, "/dev/zero", timeout=20)
    assert (run.returncode, run.stderr) == (BAD_INPUT, "heddle: /dev/zero is a device, expected a file or a pipe\n")
    with open(tmp_path / "huge", "wb") as huge:
        huge.truncate(most + 1)
    run = heddle(*command, huge.name, timeout=20)
    assert run.returncode == BAD_INPUT
    assert run.stderr == f"heddle: {huge.name} has {most + 1} bytes, expected at most {most}\n"
    run = heddle(*command, "-", timeout=20)  # /dev/null
    assert (run.returncode, run.stderr) == (BAD_INPUT, "heddle: standard input is a device, expected a file or a pipe\n")
    assert f"of at most {in_words}; - for standard input" in " ".join(heddle(command[0], "--help").stdout.split())


def test_arrays_that_have_no_end_or_are_too_large_are_not_read(heddle, root, tmp_path):
    graph = root / "fuzz" / "seeds" / "graph_json" / "sdpa.json"
    run = heddle("run", graph, "--input", "q=/dev/zero", timeout=20)
    assert (run.returncode, run.stderr) == (BAD_INPUT, "heddle: /dev/zero is a device, expected a file or a pipe\n")
    with open(tmp_path / "huge.npy", "wb") as huge:
        huge.truncate(2**34 + 1)
    run = heddle("run", graph, "--input", f"q={huge.name}", timeout=20)
    assert run.returncode == BAD_INPUT
    assert run.stderr == f"heddle: {huge.name} has 17179869185 bytes, expected at most 17179869184\n"


def test_a_program_may_come_through_a_pipe(root):
    for command, file in (("explain", program(root, "gpt_f32")), ("run", root / "fuzz" / "seeds" / "graph_json" / "sdpa.json")):
        run = subprocess.run([root / "build" / "bin" / "heddle", command, "-"], input=file.read_bytes(), capture_output=True)
        assert run.returncode == DONE and run.stdout, run.stderr


def test_malformed_hlo_gives_file_line_and_column(heddle, root, tmp_path):
    text = program(root, "gpt_f32").read_text()
    bad = tmp_path / "bad.hlo"
    bad.write_text(text[: len(text) // 2])
    run = heddle("fuse", bad, "-o", tmp_path / "out.hlo")
    assert run.returncode == BAD_INPUT
    line, column = run.stderr.removeprefix(f"heddle: {bad}:").split(":")[:2]
    assert int(line) > 1 and int(column) >= 1
    assert not (tmp_path / "out.hlo").exists()


def test_malformed_graph_and_npy(heddle, root, tmp_path):
    graph = root / "fuzz" / "seeds" / "graph_json" / "sdpa.json"
    (tmp_path / "bad.json").write_text(graph.read_text()[:200])
    run = heddle("run", tmp_path / "bad.json")
    assert run.returncode == BAD_INPUT and str(tmp_path / "bad.json") in run.stderr and "line" in run.stderr
    (tmp_path / "q.npy").write_bytes(b"\x93NUMPY\x01\x00")
    run = heddle("run", graph, "--input", f"q={tmp_path / 'q.npy'}")
    assert run.returncode == BAD_INPUT and "byte 0" in run.stderr
    run = heddle("run", graph, "--input", f"nobody={tmp_path / 'q.npy'}")
    assert run.returncode == BAD_INPUT and "names none of this graph's tensors" in run.stderr


def test_hostile_sizes_are_refused(heddle, tmp_path):
    huge = {"uid": 1, "name": "q", "dtype": "f32", "dims": [1, 1, 2**40, 64]}
    graph = {"heddle_graph": 1, "tensors": [huge, {**huge, "uid": 2}, {**huge, "uid": 3}, {**huge, "uid": 4}],
             "nodes": [{"op": "sdpa", "q": 1, "k": 2, "v": 3, "o": 4}]}
    (tmp_path / "huge.json").write_text(json.dumps(graph))
    run = heddle("run", tmp_path / "huge.json")
    assert run.returncode == BAD_INPUT and run.stderr.startswith("heddle: ")


def test_prebuild_says_what_it_cannot_build(heddle, root, tmp_path, monkeypatch):
    graph = root / "fuzz" / "seeds" / "graph_json" / "sdpa.json"
    run = heddle("prebuild", "--arch", "sm_90", graph)
    assert run.returncode == BAD_INPUT and run.stdout == ""
    assert run.stderr == "heddle: The architecture is 'sm_90', but devices of compute capability 9.0 run sm_90a.\n"
    (tmp_path / "bad.json").write_text(graph.read_text()[:200])
    run = heddle("prebuild", "--arch", "sm_80", tmp_path / "bad.json")
    assert run.returncode == BAD_INPUT and str(tmp_path / "bad.json") in run.stderr and "line" in run.stderr
    monkeypatch.setenv("HEDDLE_CACHE_DIR", "")
    run = heddle("prebuild", "--arch", "sm_80", graph)
    assert run.returncode == BAD_INPUT and "no kernel cache to fill" in run.stderr


def test_an_archive_that_serves_nothing_is_said(heddle, root, tmp_path, monkeypatch):
    """By doctor, and by no failure: what it would hold is compiled where it is used."""
    archive = tmp_path / "kernels"
    archive.write_bytes(b"heddle kernels 1" + bytes(100))
    for name, sentence in ((archive, f"{archive} is not used: it has 116 bytes, and says that it has 0"),
                           (tmp_path / "absent", f"{tmp_path}/absent is not used: No such file or directory"),
                           ("", "HEDDLE_KERNELS is set to nothing")):
        monkeypatch.setenv("HEDDLE_KERNELS", str(name))
        assert sentence in " ".join(heddle("doctor").stdout.split())
        graph = root / "fuzz" / "seeds" / "graph_json" / "sdpa.json"
        run = heddle("explain", graph, "--device", "cuda", "--arch", "sm_90a")
        assert run.returncode == 0 and "kernel attention_forward" in run.stdout and "beforehand" not in run.stdout


def test_cache_lists_prunes_and_clears(heddle, tmp_path, monkeypatch):
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path))
    for number in (1, 2):
        entry = tmp_path / f"{number:032x}"
        entry.mkdir()
        (entry / "kernel.cubin").write_bytes(bytes(1000))
        meta = {"name": f"kernel{number}", "dtype": "bf16", "head_dim": f"192/{64 * number}", "features": "causal",
                "key": "--gpu-architecture=sm_90a\n"}
        (entry / "meta.json").write_text(json.dumps(meta))
        used = time.time() - 86400 * (5 - number)
        os.utime(entry / "meta.json", (used, used))
    listed = heddle("cache", "list").stdout.splitlines()
    assert listed[0] == str(tmp_path)
    assert [line.split()[:4] for line in listed[2:4]] == [["kernel2", "sm_90a", "bf16", "192/128"],
                                                          ["kernel1", "sm_90a", "bf16", "192/64"]]
    assert "3 days ago" in listed[2] and listed[2].endswith("causal")
    assert listed[4] == "2 kernels of another version of Heddle, which this one does not use"
    assert heddle("cache", "prune").stdout == "0 kernels removed\n"
    assert heddle("cache", "prune", "--bytes", 2000).stdout == "1 kernel removed\n"  # the one not used for longest
    assert "kernel2" in heddle("cache", "list").stdout
    assert heddle("cache", "prune", "--bytes", -1).returncode == BAD_INPUT
    assert heddle("cache", "clear").stdout == "1 kernel removed\n"
    monkeypatch.setenv("HEDDLE_CACHE_DIR", "")
    assert "there is no kernel cache" in heddle("cache", "list").stderr


def test_a_cache_that_is_not_there_or_no_folder_is_said(heddle, tmp_path, monkeypatch):
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path / "mistyped"))
    assert heddle("cache", "list").stdout == f"{tmp_path}/mistyped is not there\n"
    for command in ("prune", "clear"):
        assert heddle("cache", command).stdout == f"{tmp_path}/mistyped is not there\n0 kernels removed\n"
    (tmp_path / "file").write_text("text")
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path / "file"))
    for command in ("list", "prune", "clear"):
        run = heddle("cache", command)
        assert run.returncode == BAD_INPUT and run.stderr == f"heddle: {tmp_path}/file cannot be read: Not a directory\n"


def test_a_compiler_that_was_named_wrongly_is_said(heddle, root, tmp_path, monkeypatch):
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "text").write_text("no library")
    graph = root / "fuzz" / "seeds" / "graph_json" / "rope.json"
    for name in (tmp_path / "text", tmp_path, tmp_path / "absent"):
        monkeypatch.setenv("HEDDLE_NVRTC", str(name))
        run = heddle("prebuild", "--arch", "sm_80", graph)
        assert run.returncode == BAD_INPUT and run.stderr.count("\n") == 1
        assert f"(tried {name}): {name}: " in run.stderr and run.stderr.endswith("; HEDDLE_NVRTC names it\n")
