"""examples/onnxruntime/generate.py generates what its weights say, alone and with Heddle, and notices what is not the same."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import heddle.onnxruntime

PATH = Path(__file__).parents[2] / "examples" / "onnxruntime" / "generate.py"
SMALL = ["--layers", "2", "--width", "32", "--heads", "4", "--kv-heads", "2", "--head-size", "16", "--hidden", "48", "--vocabulary",
         "64", "--prompt", "12", "--tokens", "9", "--batch", "3", "--chunk", "5", "--past", "40", "--draft", "3", "--repeat", "1"]


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


def sessions_of(generate, *arguments):
    options = generate.parsed([*SMALL, *arguments])
    model = generate.decoder(options, 64)
    return options, model, (onnxruntime.InferenceSession(model), heddle.onnxruntime.session(model))


@pytest.mark.parametrize("arguments", [[], ["--separate", "--seed", "5"]], ids=["packed", "separate"])
def test_runs_and_says_the_same_tokens(arguments, tmp_path):
    run = subprocess.run([sys.executable, PATH, *SMALL, *arguments, "--save", tmp_path / "decoder.onnx"], capture_output=True,
                         text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert run.returncode == 0, run.stderr
    row = re.compile(r"^  (\w+) +\d+ /s +\d+ /s +[\d.]+x   (\d+) same tokens", re.M)
    assert row.findall(run.stdout) == [("prompt", "12"), ("decode", "9"), ("ragged", "27"), ("chunk", "5"), ("speculative", "9")]
    # Each workload runs twice with Heddle: two attentions a step, and the norm that no sum stands before.
    assert int(re.search(r"Heddle ran (\d+) nodes", run.stdout)[1]) >= 3 * 2 * (1 + 10 + 10 + 2 + 10)
    inputs = [node.input[:3] for node in onnx.load(tmp_path / "decoder.onnx").graph.node if node.op_type == "GroupQueryAttention"]
    assert [all(names) for names in inputs] == [bool(arguments)] * 2


# ---- The model in f64, of its weights alone ----


def logits_in_f64(model, tokens, options):
    """Logits [S, V] of tokens [S] without a cache."""
    weights = {w.name: onnx.numpy_helper.to_array(w).astype(np.float64) for w in onnx.load_from_string(model).graph.initializer}
    rows, n, k, h = len(tokens), options.heads, options.kv_heads, options.head_size

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"]

    def rotated(x):  # [S, heads, h]
        cos, sin = (weights[f"{f}_cache"][:rows, None] for f in ("cos", "sin"))
        low, high = np.split(x, 2, -1)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    x = weights["embedding"][tokens]
    for layer in range(options.layers):
        of = lambda name, layer=layer: weights[f"layer{layer}.{name}.weight"]
        q, key, v = np.split((norm(x, f"layer{layer}.attention_norm") @ of("qkv")).reshape(rows, -1, h), [n, n + k], 1)
        key, v = (np.repeat(y, n // k, 1) for y in (rotated(key), v))
        scores = np.einsum("inh,jnh->nij", rotated(q), key) / np.sqrt(h) + np.triu(np.full((rows, rows), -np.inf), 1)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        o = np.einsum("nij,jnh->inh", p / p.sum(-1, keepdims=True), v)
        x = x + o.reshape(rows, -1) @ of("projected")
        y = norm(x, f"layer{layer}.mlp_norm")
        gate = y @ of("gate")
        x = x + gate / (1 + np.exp(-gate)) * (y @ of("up")) @ of("down")
    return norm(x, "final_norm") @ weights["logits.weight"]


def test_logits_are_those_of_the_weights(generate):
    options, model, sessions = sessions_of(generate)
    prompts = generate.drawn_tokens(options, options.batch, options.prompt)
    for session in sessions:
        made = generate.ragged(session, options)
        for b, length in enumerate((12, 6, 1)):
            tokens = np.concatenate([prompts[b, :length], made.tokens[b]])
            exact = logits_in_f64(model, tokens, options)[length - 1:-1]
            np.testing.assert_allclose(made.logits[b], exact, rtol=1e-4, atol=1e-4)


def test_steps_of_all_kinds_say_one_text(generate):
    """What a prompt, a chunk behind it and steps with drafts give is what a longer prompt gives."""
    options, model, (_, session) = sessions_of(generate)
    given = generate.drawn_tokens(options, 1, 17)
    exact = logits_in_f64(model, given[0], options)
    np.testing.assert_allclose(generate.chunk(session, options).logits[0], exact[12:], rtol=1e-4, atol=1e-4)
    decoder = generate.Decoder(session, options, 1, 40)
    decoder.step(given[:, :9])
    decoder.step(generate.drawn_tokens(options, 1, 4))  # a draft of which nothing is kept
    decoder.lengths -= 4
    np.testing.assert_allclose(decoder.step(given[:, 9:11])[0][0], exact[9:11], rtol=1e-4, atol=1e-4)
    past = generate.drawn_tokens(options, 1, options.past)[0]
    made = generate.speculative(session, options)
    exact = logits_in_f64(model, np.concatenate([past, made.tokens[0]]), options)[options.past - 1:-1]
    np.testing.assert_allclose(made.logits[0], exact, rtol=1e-4, atol=1e-4)


def test_tokens_depend_on_what_lies_far_behind(generate):
    options, _, (_, session) = sessions_of(generate)
    given = generate.drawn_tokens(options, 1, options.prompt)
    made = []
    for first in (given[0, 0], (given[0, 0] + 1) % options.vocabulary):
        given[0, 0] = first
        decoder = generate.Decoder(session, options, 1, 40)
        made.append(decoder.generate(decoder.step(given)[0][:, -1], 9)[0])
    assert (made[0] != made[1]).any()


@pytest.mark.parametrize("name", ["prompt", "decode", "ragged", "chunk", "speculative"])
def test_other_tokens_end_it(generate, name):
    options, _, (alone, _) = sessions_of(generate)
    _, _, (_, another) = sessions_of(generate, "--seed", "9")
    with pytest.raises(SystemExit, match=f"{name}: tokens of ONNX Runtime and of Heddle differ: token 0 of entry 0 is"):
        generate.compare(getattr(generate, name), (alone, another), options)


def test_a_tie_is_no_difference_and_is_told(generate):
    logits = np.array([[[1.0, 2.0, 0.0], [3.0, 0.0, 3.00001], [0.0, 1.0, 0.0]]])
    tokens, others = np.array([[1, 2, 1]]), np.array([[1, 0, 2]])
    assert generate.agree(tokens, tokens, logits, "runs") == 0
    assert generate.agree(tokens, others, logits, "runs") == 1
    with pytest.raises(SystemExit, match="^runs differ: token 1 of entry 0 is 2 and 1, with logits of 3.00001 and 0.00000.$"):
        generate.agree(tokens, np.array([[1, 1, 1]]), logits, "runs")


@pytest.mark.parametrize("arguments, sentence", [
    (["--layers", "0"], "--layers must be 1 or more, got 0"),
    (["--heads", "3"], "--heads must be a multiple of --kv-heads, got 3 and 2"),
    (["--head-size", "24"], "--head-size must be a multiple of 16, as RoPE wants it, got 24"),
    (["--chunk", "1"], "--prompt and --chunk must be 2 or more: one token is no prompt and no chunk"),
    (["--seed", "-1"], "--seed must not be negative, got -1"),
    (["--width", "100000"], "weights of .* GiB do not fit a model, which holds less than 2"),
], ids=lambda words: words[0][2:] if isinstance(words, list) else "says")
def test_wrong_options_get_a_sentence(generate, capsys, arguments, sentence):
    with pytest.raises(SystemExit):
        generate.parsed(arguments)
    assert re.search(sentence, capsys.readouterr().err)
