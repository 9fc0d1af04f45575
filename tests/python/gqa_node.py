"""A GroupQueryAttention node with arrays for its inputs: run by Heddle, run by onnxruntime, and defined in f64."""

import ml_dtypes
import numpy as np

import heddle
from heddle._gqa import INPUTS, OUTPUTS

DTYPES = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(np.int8): "i8", np.dtype(np.uint8): "u8",
          np.dtype(np.int32): "i32", np.dtype(np.int64): "i64", np.dtype(ml_dtypes.bfloat16): "bf16",
          np.dtype(ml_dtypes.float8_e4m3fn): "f8e4m3"}


class Node:
    """inputs: name -> array. attributes: as the operator's; those left out have its defaults."""

    def __init__(self, inputs, **attributes):
        self.inputs, self.attributes = inputs, attributes
        self.heads, self.kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
        self.batch, self.rows, hidden = inputs["query"].shape
        self.head_size = hidden // (self.heads if "key" in inputs else self.heads + 2 * self.kv_heads)
        self.total = int(inputs["total_sequence_length"][0])

    def graph(self):
        given = {name: (DTYPES[array.dtype], array.shape) for name, array in self.inputs.items()
                 if name != "total_sequence_length"}
        outputs = OUTPUTS if self.attributes.get("qk_output") else OUTPUTS[:3]
        return heddle.gqa(self.total, outputs, **given, **self.attributes)

    def by_heddle(self, in_place=False, place=lambda array: array, device="cpu", execute=None):
        """The outputs by name, each poisoned before the run; in place, the past's own buffers are the present ones.

        place: moves an array to where it is to lie. execute: runs the device's plan with arrays by their uids, where it does
        not run where they lie.
        """
        graph = self.graph()
        plan, uids = heddle.Plan(graph, device), heddle.gqa.uids
        arrays = {name: place(array.copy()) for name, array in self.inputs.items()}
        results = {"output": np.full((self.batch, self.rows, self.heads * self.head_size), np.nan, arrays["query"].dtype)}
        if uids["present_key"] in plan.outputs:
            for name in ("key", "value"):
                results[f"present_{name}"] = arrays[f"past_{name}"] if in_place else self._cache()
        if self.attributes.get("qk_output"):
            results["output_qk"] = np.full((self.batch, self.heads, self.rows, self.total), np.nan, arrays["query"].dtype)
        results = {name: array if in_place and name.startswith("present") else place(array) for name, array in results.items()}
        if execute:
            execute(plan, {uids[name]: array for name, array in (arrays | results).items()})
            return results
        addresses = {uids[name]: array.ctypes.data for name, array in (arrays | results).items()}
        workspace = np.full(max(plan.workspace_bytes, 1), 255, np.uint8)
        plan.execute(addresses, workspace.ctypes.data)
        return results

    def _cache(self):
        past = self.inputs.get("past_key")
        rows = self.total if past is None else past.shape[2]
        if not self.attributes.get("sliding_window_cache"):
            rows = max(rows, self.total)
        dtype = self.inputs["query"].dtype if past is None else past.dtype
        columns = self.head_size // 2 if dtype == np.uint8 else self.head_size
        cache = np.empty((self.batch, self.kv_heads, rows, columns), dtype)
        cache.view(np.uint8)[...] = 255
        return cache

    def by_onnxruntime(self, library=None, in_place=False):
        """The outputs of a session with one node, by the kernel of `library` if it is given; each poisoned before the run.

        In place, past and present are one buffer.
        """
        feeds = {name: array.copy() for name, array in self.inputs.items()}
        results = {"output": np.full((self.batch, self.rows, self.heads * self.head_size), np.nan, feeds["query"].dtype)}
        for name in ("key", "value"):
            results[f"present_{name}"] = feeds[f"past_{name}"] if in_place else self._cache()
        if self.attributes.get("qk_output"):
            results["output_qk"] = np.full((self.batch, self.heads, self.rows, self.total), np.nan, feeds["query"].dtype)
        self.node().run(feeds, results, library)
        return results

    def node(self):
        import onnx_node  # a machine with a GPU may have no onnxruntime

        return onnx_node.Node("GroupQueryAttention", "com.microsoft", INPUTS, OUTPUTS, self.attributes)

    # ---- The definition ----

    def lengths(self):
        """Rows before, new rows and rows with them, of each entry."""
        total = self.inputs["seqlens_k"].reshape(-1).astype(int) + 1
        added = self.inputs.get("query_seqlens", np.full(self.batch, self.rows)).astype(int)
        return np.maximum(total - added, 0), added, total

    def heads_of_inputs(self):
        """Q, K and V [B, S, heads, H] in f64, normalised and rotated."""
        n, k, h = self.heads, self.kv_heads, self.head_size
        query = self.inputs["query"].astype(np.float64).reshape(self.batch, self.rows, -1, h)
        if "key" in self.inputs:
            q, parts = query, [self.inputs[name].astype(np.float64).reshape(self.batch, -1, k, h) for name in ("key", "value")]
        else:
            q, parts = query[:, :, :n], [query[:, :, n:n + k], query[:, :, n + k:]]
        past = self.lengths()[0]
        ids = past[:, None] + np.arange(self.rows)
        if "position_ids" in self.inputs:
            ids = self.inputs["position_ids"][:, :self.rows]
        return tuple(self._prepared(x, name, ids) for x, name in ((q, "q"), (parts[0], "k"))) + (parts[1],)

    def _prepared(self, x, name, ids):
        if x.shape[1] == 0:
            return x
        if f"{name}_norm_weight" in self.inputs:
            epsilon = self.attributes.get("qk_norm_epsilon", 1e-6)
            x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * self.inputs[f"{name}_norm_weight"].astype(np.float64)
        if not self.attributes.get("do_rotary"):
            return x
        cos, sin = (self.inputs[f"{t}_cache"].astype(np.float64)[ids][:, :, None] for t in ("cos", "sin"))
        half, y = cos.shape[-1], x.copy()
        lo, hi = (np.s_[..., :2 * half:2], np.s_[..., 1:2 * half:2]) if self.attributes.get("rotary_interleaved") else (
            np.s_[..., :half], np.s_[..., half:2 * half])
        y[lo], y[hi] = x[lo] * cos - x[hi] * sin, x[hi] * cos + x[lo] * sin
        return y

    def numbers(self, cache, name):
        """A cache's rows as numbers: codes times scales."""
        x = cache.astype(np.float64)
        if cache.dtype == np.uint8:
            x = np.stack([cache & 15, cache >> 4], -1).reshape(*cache.shape[:-1], -1).astype(np.float64) - 8
        if self.attributes.get("k_quant_type", "NONE") == "NONE":
            return x
        scale = self.inputs[f"{name}_scale"].astype(np.float64)
        return x * (scale.reshape(1, self.kv_heads, 1, -1) if scale.size > 1 else scale.reshape(()))

    def codes(self, x, name):
        """Rows [rows, kv heads, H] as a cache of this node holds them, [kv heads, rows, columns]."""
        x = x.transpose(1, 0, 2)
        if self.attributes.get("k_quant_type", "NONE") == "NONE":
            return x
        scale = self.inputs[f"{name}_scale"].astype(np.float64)
        scale = scale.reshape(self.kv_heads, 1, -1) if scale.size > 1 else scale.reshape(())
        if (past := self.inputs.get("past_key")) is not None and past.dtype == ml_dtypes.float8_e4m3fn:
            return np.clip(x / scale, -448, 448).astype(past.dtype).astype(np.float64)
        if self.attributes["kv_cache_bit_width"] == 8:
            return np.clip(np.rint(x / scale), -128, 127)
        four = np.clip(np.rint(x / scale), -8, 7).astype(int) + 8
        return four[..., ::2] | four[..., 1::2] << 4

    def present(self):
        """The caches after the node, of a cache that is no window: past, new rows, zeros."""
        _, k, v = self.heads_of_inputs()
        past, added, _ = self.lengths()
        made = []
        for name, new in (("key", k), ("value", v)):
            cache = np.zeros(self._cache().shape)
            for b in range(self.batch):
                if (before := self.inputs.get(f"past_{name}")) is not None:
                    cache[b, :, :past[b]] = before[b, :, :past[b]]
                end = min(past[b] + added[b], cache.shape[2])
                cache[b, :, past[b]:end] = self.codes(new[b, :end - past[b]], name[0])
            made.append(cache)
        return made

    def attention(self, k_rows, v_rows, scores=None):
        """The output from keys and values by entry, [kv heads, rows from position 0 on, H]; fills in `scores`, of zeros."""
        q = self.heads_of_inputs()[0]
        past, added, total = self.lengths()
        scale = self.attributes.get("scale") or 1 / np.sqrt(self.head_size)
        cap, window = self.attributes.get("softcap", 0), self.attributes.get("local_window_size", -1)
        out = np.zeros((self.batch, self.rows, self.heads, self.head_size))
        for b in range(self.batch):
            for s in range(min(added[b], total[b])):
                for n in range(self.heads):
                    kv = n // (self.heads // self.kv_heads)
                    last = min(past[b] + s + 1, total[b]) if self.attributes.get("causal", 1) else total[b]
                    first = max(0, past[b] + s - window + 1) if window > 0 else 0
                    x = k_rows[b][kv, first:last] @ q[b, s, n] * scale
                    if cap:
                        x = cap * np.tanh(x / cap)
                    if "attention_bias" in self.inputs:
                        bias = self.inputs["attention_bias"].astype(np.float64)
                        x = x + np.broadcast_to(bias, (self.batch, self.heads, *bias.shape[2:]))[b, n, s, first:last]
                    sink = -np.inf
                    if "head_sink" in self.inputs:
                        sink = float(self.inputs["head_sink"][n])
                    elif self.attributes.get("smooth_softmax") == 1:
                        sink = 0.0
                    m = max(sink, x.max())
                    p = np.exp(x - m)
                    p /= p.sum() + np.exp(sink - m)
                    out[b, s, n] = p @ v_rows[b][kv, first:last]
                    if scores is not None:
                        scores[b, n, s, first:last] = p if self.attributes["qk_output"] == 2 else x
        return out.reshape(self.batch, self.rows, -1)

    def output_from(self, present_key, present_value, scores=None):
        """The output, and scores, from caches as they are after the node."""
        rows = [[self.numbers(cache, name)[b] for b in range(self.batch)]
                for cache, name in ((present_key, "k"), (present_value, "v"))]
        return self.attention(*rows, scores)

    def valid(self, output):
        """The rows of an output that are tokens, as one array."""
        _, added, total = self.lengths()
        return np.concatenate([output[b, :min(added[b], total[b])] for b in range(self.batch)])

