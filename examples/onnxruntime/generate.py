"""A small Llama-like decoder as an ONNX model, which ONNX Runtime runs alone and with Heddle: the tokens are the same.

    python examples/onnxruntime/generate.py                     # some seconds on a CPU
    python examples/onnxruntime/generate.py --layers 8 --width 1024 --past 8192
    python examples/onnxruntime/generate.py --save decoder.onnx # the model, to look at

The model is com.microsoft's GroupQueryAttention between norms, a gated MLP and a head, with weights drawn from a seed. Caches
are buffers of one length, bound as past and present: a step writes its own rows, nothing is copied.

Shapes: B batch, S rows of a step, E width, N heads, K key and value heads, H head size, V vocabulary, C rows of a cache.
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bindings" / "python"))

import heddle.onnxruntime
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

F32, I32, I64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
ELEMENTS = {np.dtype(np.float32): F32, np.dtype(np.int32): I32, np.dtype(np.int64): I64}
CACHES = ("key", "value")
# Logits of two runs may differ by so much of the largest one: what rounding leaves of sums in another order.
ROUNDING = 1e-4


# ---- The model ----


class Graph:
    """Nodes and weights of a model as they come; a node's first output has its name."""

    def __init__(self, seed):
        self.nodes, self.weights, self._rng = [], [], np.random.default_rng(seed)

    def node(self, operator, name, inputs, more_outputs=(), **attributes):
        self.nodes.append(helper.make_node(operator, inputs, [name, *more_outputs], name=name, **attributes))
        return name

    def weight(self, name, array):
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def drawn(self, rows, columns, spread):
        return self._rng.standard_normal((rows, columns), np.float32) * np.float32(spread)

    def matrix(self, rows, columns, gain=1.0):
        """One that makes numbers of spread `gain` from those of spread 1."""
        return self.drawn(rows, columns, gain * rows**-0.5)

    def product(self, name, x, matrix):
        """x [B, S, rows] times a matrix."""
        return self.node("MatMul", name, [x, self.weight(f"{name}.weight", matrix)])

    def norm(self, name, x, width):
        weight = self.weight(f"{name}.weight", self._rng.uniform(0.5, 1.5, width).astype(np.float32))
        return self.node("SimplifiedLayerNormalization", name, [x, weight], axis=-1, epsilon=1e-5)


def decoder(options, positions):
    """The model's bytes: tokens [B, S] and caches to logits [B, S, V], with RoPE tables of so many positions."""
    graph, k, h = Graph(options.seed), options.kv_heads, options.head_size
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(h // 2) / (h // 2))
    tables = [graph.weight(f"{f.__name__}_cache", f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
    embedding = graph.weight("embedding", graph.drawn(options.vocabulary, options.width, 1.0))
    x = graph.node("Gather", "embedded", [embedding, "tokens"])
    for layer in range(options.layers):
        x = attention(graph, f"layer{layer}", x, tables, options)
        x = gated_mlp(graph, f"layer{layer}", x, options)
    graph.product("logits", graph.norm("final_norm", x, options.width), graph.matrix(options.width, options.vocabulary))

    info = helper.make_tensor_value_info
    cache = ["batch", k, "capacity", h]
    names = [f"{name}{layer}" for layer in range(options.layers) for name in CACHES]
    inputs = [info("tokens", I64, ["batch", "rows"]), info("seqlens_k", I32, ["batch"]), info("total_sequence_length", I32, [1])]
    inputs += [info(f"past_{name}", F32, cache) for name in names]
    outputs = [info("logits", F32, ["batch", "rows", options.vocabulary])]
    outputs += [info(f"present_{name}", F32, cache) for name in names]
    made = helper.make_graph(graph.nodes, "decoder", inputs, outputs, graph.weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10).SerializeToString()


def attention(graph, layer, x, tables, options):
    n, k, h, width = options.heads, options.kv_heads, options.head_size, options.width
    y = graph.norm(f"{layer}.attention_norm", x, width)
    # Scores of some size, so that a row looks at few keys and a wrong key changes the tokens.
    matrices = {name: graph.matrix(width, columns * h, gain)
                for name, columns, gain in (("query", n, 2.0), ("key", k, 2.0), ("value", k, 1.0))}
    if options.separate:
        qkv = [graph.product(f"{layer}.{name}", y, matrix) for name, matrix in matrices.items()]
    else:
        qkv = [graph.product(f"{layer}.qkv", y, np.concatenate(list(matrices.values()), 1)), "", ""]
    names = [f"{name}{layer.removeprefix('layer')}" for name in CACHES]
    inputs = [*qkv, *(f"past_{name}" for name in names), "seqlens_k", "total_sequence_length", *tables]
    o = graph.node("GroupQueryAttention", f"{layer}.attention", inputs, [f"present_{name}" for name in names],
                   domain="com.microsoft", num_heads=n, kv_num_heads=k, do_rotary=1)
    return graph.node("Add", f"{layer}.attended", [x, graph.product(f"{layer}.projected", o, graph.matrix(n * h, width))])


def gated_mlp(graph, layer, x, options):
    width, hidden = options.width, options.hidden
    y = graph.norm(f"{layer}.mlp_norm", x, width)
    gate, up = (graph.product(f"{layer}.{name}", y, graph.matrix(width, hidden)) for name in ("gate", "up"))
    silu = graph.node("Mul", f"{layer}.silu", [gate, graph.node("Sigmoid", f"{layer}.sigmoid", [gate])])
    down = graph.product(f"{layer}.down", graph.node("Mul", f"{layer}.gated", [silu, up]), graph.matrix(hidden, width))
    return graph.node("Add", f"{layer}.out", [x, down])


# ---- Running it ----


class Decoder:
    """A session with its caches, past and present in one buffer, and how many rows of them each entry has."""

    def __init__(self, session, options, batch, capacity):
        self._session, self._binding = session, session.io_binding()
        self.lengths = np.zeros(batch, np.int64)
        self._caches = {}
        for layer in range(options.layers):
            for name in CACHES:
                cache = np.zeros((batch, options.kv_heads, capacity, options.head_size), np.float32)
                self._caches[f"{name}{layer}"] = cache
                self._bind(self._binding.bind_input, f"past_{name}{layer}", cache)
                self._bind(self._binding.bind_output, f"present_{name}{layer}", cache)
        self._vocabulary = options.vocabulary

    @staticmethod
    def _bind(bind, name, array):
        bind(name, "cpu", 0, ELEMENTS[array.dtype], array.shape, array.ctypes.data)

    def step(self, tokens, added=None):
        """Logits [B, S, V] of tokens [B, S] behind the past, and how long they took, in seconds.

        added: how many of the S are tokens, of each entry [B]; the others pad it, and their logits say nothing. All of them
        unless given.
        """
        batch, rows = tokens.shape
        self.lengths += rows if added is None else added
        given = {"tokens": np.ascontiguousarray(tokens, np.int64), "seqlens_k": (self.lengths - 1).astype(np.int32),
                 "total_sequence_length": np.array([self.lengths.max()], np.int32)}
        logits = np.empty((batch, rows, self._vocabulary), np.float32)
        for name, array in given.items():
            self._bind(self._binding.bind_input, name, array)
        self._bind(self._binding.bind_output, "logits", logits)
        start = time.perf_counter()
        self._session.run_with_iobinding(self._binding)
        return logits, time.perf_counter() - start

    def generate(self, logits, count):
        """Each entry's likeliest tokens [B, count] after logits [B, V], with the logits that chose them, and a step's seconds."""
        tokens, chosen, seconds = [], [], []
        for _ in range(count):
            chosen.append(logits)
            tokens.append(logits.argmax(-1))
            logits, took = self.step(tokens[-1][:, None])
            logits = logits[:, 0]
            seconds.append(took)
        return np.stack(tokens, 1), np.stack(chosen, 1), seconds


# ---- What is generated: each gives tokens with the logits that chose them, and seconds of steps of so many tokens ----


@dataclass
class Generated:
    tokens: np.ndarray  # [B, S], each the largest of
    logits: np.ndarray  # [B, S, V]
    seconds: list
    step: int  # tokens that went into a step, of all entries


def drawn_tokens(options, *dims):
    return np.random.default_rng(options.seed + 1).integers(0, options.vocabulary, dims)


def prompt(session, options):
    """A prompt into an empty cache; of each row the token that would follow."""
    given, seconds = drawn_tokens(options, 1, options.prompt), []
    decoder = Decoder(session, options, 1, options.prompt)
    for _ in range(options.repeat):
        decoder.lengths[:] = 0
        logits, took = decoder.step(given)
        seconds.append(took)
    return Generated(logits.argmax(-1), logits, seconds, options.prompt)


def decode(session, options):
    """A prompt, then one token after another."""
    decoder = Decoder(session, options, 1, options.prompt + options.tokens)
    logits, _ = decoder.step(drawn_tokens(options, 1, options.prompt))
    return Generated(*decoder.generate(logits[:, -1], options.tokens), 1)


def ragged(session, options):
    """Prompts of as many lengths as entries, padded on the right; then a token of each entry in a step."""
    batch = options.batch
    lengths = np.linspace(1, options.prompt, batch).astype(int)[::-1]
    decoder = Decoder(session, options, batch, options.prompt + options.tokens)
    logits, _ = decoder.step(drawn_tokens(options, batch, options.prompt), lengths)
    return Generated(*decoder.generate(logits[np.arange(batch), lengths - 1], options.tokens), batch)


def chunk(session, options):
    """A prompt, and a chunk of many tokens behind it; of each row the token that would follow.

    One entry: of more, ONNX Runtime takes several rows behind a past from 1.32 on, and with lengths of their own alone.
    """
    given, seconds = drawn_tokens(options, 1, options.prompt + options.chunk), []
    decoder = Decoder(session, options, 1, options.prompt + options.chunk)
    decoder.step(given[:, :options.prompt])
    for _ in range(options.repeat):
        decoder.lengths[:] = options.prompt  # what lies behind is written again
        logits, took = decoder.step(given[:, options.prompt:])
        seconds.append(took)
    return Generated(logits.argmax(-1), logits, seconds, options.chunk)


def speculative(session, options):
    """Steps of a token and a draft behind a long past: rows of the draft up to its first wrong token are kept.

    The draft is what single steps gave, each token wrong with a probability of 1/4, as that of a small model would be.
    """
    past, count, rng = options.past, options.tokens, np.random.default_rng(options.seed + 2)
    decoder = Decoder(session, options, 1, past + count + options.draft + 1)
    logits, _ = decoder.step(drawn_tokens(options, 1, past))
    single, _, _ = decoder.generate(logits[:, -1], count)
    drafts = np.where(rng.random(count + options.draft) < 0.25, 1, 0)
    drafts[:count] += single[0]
    drafts %= options.vocabulary

    decoder.lengths[:] = past
    chosen, tokens, seconds = [logits[0, -1]], [int(logits[0, -1].argmax())], []
    while len(tokens) < count:
        draft = drafts[len(tokens):len(tokens) + options.draft]
        logits, took = decoder.step(np.array([[tokens[-1], *draft]]))
        follow = logits[0].argmax(-1)
        wrong = np.flatnonzero(follow[:-1] != draft)
        kept = int(wrong[0]) if wrong.size else options.draft
        decoder.lengths -= options.draft - kept
        tokens += follow[:kept + 1].tolist()
        chosen += list(logits[0, :kept + 1])
        seconds.append(took)
    made = Generated(np.array([tokens[:count]]), np.array([chosen[:count]]), seconds, options.draft + 1)
    agree(made.tokens, single, made.logits, "speculative steps and single ones")
    return made


def agree(tokens, others, logits, whose):
    """Ends the program if tokens [B, S] of two runs differ, but where two logits are as good as equal.

    logits [B, S, V]: those that chose `tokens`. Behind a tie an entry's tokens may differ. Returns how many entries had one.
    """
    ties = 0
    for b, (ours, theirs) in enumerate(zip(tokens, others, strict=True)):
        different = np.flatnonzero(ours != theirs)
        if not different.size:
            continue
        s = different[0]
        row = logits[b, s]
        if row[ours[s]] - row[theirs[s]] > ROUNDING * np.abs(row).max():
            sys.exit(f"{whose} differ: token {s} of entry {b} is {ours[s]} and {theirs[s]}, with logits of {row[ours[s]]:.5f} and "
                     f"{row[theirs[s]]:.5f}.")
        ties += 1
    return ties


# ---- Beside each other ----


def compare(workload, sessions, options):
    """Runs a workload with ONNX Runtime alone and with Heddle, prints tokens a second of both, and holds the tokens together."""
    print(f"  {workload.__name__:12}", end="", flush=True)
    results = []
    for session in sessions:
        workload(session, options)  # plans are made and memory is touched
        results.append(workload(session, options))
        rate = results[-1].step / statistics.median(results[-1].seconds)
        print(f"{rate:13.0f} /s", end="", flush=True)
    theirs, ours = results
    ties = agree(theirs.tokens, ours.tokens, theirs.logits, f"{workload.__name__}: tokens of ONNX Runtime and of Heddle")
    speed = statistics.median(theirs.seconds) / statistics.median(ours.seconds)
    said = "same tokens" if ties == 0 else f"same tokens up to a tie in {ties} of {len(ours.tokens)} entries"
    print(f"{speed:8.2f}x   {ours.tokens.size} {said}", flush=True)


# Options that count something, with their defaults.
COUNTS = {"layers": (4, "blocks of attention and MLP"), "width": (256, "of what layers hand on"), "heads": (8, "of queries"),
          "kv-heads": (2, "of keys and values"), "head-size": (64, "a multiple of 16"), "hidden": (704, "width within the MLP"),
          "vocabulary": (1024, "tokens there are"), "prompt": (256, "rows of a prompt"), "tokens": (48, "that are generated"),
          "batch": (4, "entries of ragged lengths"), "chunk": (64, "rows that are appended at once"),
          "past": (1024, "rows before a speculative step"), "draft": (4, "tokens of a speculative step's draft"),
          "repeat": (5, "runs of a prompt and of a chunk")}


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (value, what) in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{what}, default {value}")
    parser.add_argument("--seed", type=int, default=1, help="of weights and tokens, default 1")
    parser.add_argument("--separate", action="store_true", help="Q, K and V as inputs of their own, in place of one that is packed")
    parser.add_argument("--save", type=Path, metavar="PATH", help="writes the model there")
    options = parser.parse_args(arguments)
    for name in COUNTS:
        if (value := getattr(options, name.replace("-", "_"))) < 1:
            parser.error(f"--{name} must be 1 or more, got {value}")
    if options.seed < 0:
        parser.error(f"--seed must not be negative, got {options.seed}")
    if options.heads % options.kv_heads:
        parser.error(f"--heads must be a multiple of --kv-heads, got {options.heads} and {options.kv_heads}")
    if options.head_size % 16:
        parser.error(f"--head-size must be a multiple of 16, as RoPE wants it, got {options.head_size}")
    if options.prompt < 2 or options.chunk < 2:
        parser.error("--prompt and --chunk must be 2 or more: one token is no prompt and no chunk")
    if (size := 4 * weights(options)) >= 1 << 31:
        parser.error(f"weights of {size / 2**30:.1f} GiB do not fit a model, which holds less than 2")
    return options


def weights(options):
    """How many numbers the model's matrices hold."""
    o, e = options, options.width
    layer = e * (o.heads + 2 * o.kv_heads) * o.head_size + e * o.heads * o.head_size + 3 * e * o.hidden
    return o.layers * layer + 2 * e * o.vocabulary


def main(arguments=None):
    options = parsed(arguments)
    positions = max(options.prompt + max(options.tokens, options.chunk), options.past + options.tokens + options.draft + 1)
    model = decoder(options, positions)
    if options.save:
        options.save.write_bytes(model)
    print(f"A decoder of {options.layers} layers, width {options.width}, {options.heads} heads of {options.head_size} over "
          f"{options.kv_heads} of K and V, {weights(options) / 1e6:.1f} million weights of seed {options.seed}, f32.\n\n"
          f"  {'':12}{'onnxruntime':>16}{'heddle':>16}", flush=True)
    before = sum(map(heddle.onnxruntime.calls, heddle.onnxruntime.DOMAINS))
    sessions = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]), heddle.onnxruntime.session(
        model, providers=["CPUExecutionProvider"])
    for workload in (prompt, decode, ragged, chunk, speculative):
        compare(workload, sessions, options)
    after = sum(map(heddle.onnxruntime.calls, heddle.onnxruntime.DOMAINS))
    print(f"\nTokens a second of the median step, those that go in; Heddle ran {after - before} nodes.")


if __name__ == "__main__":
    main()
