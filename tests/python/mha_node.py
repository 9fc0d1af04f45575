"""A node of com.microsoft's MultiHeadAttention with arrays for its inputs: run by onnxruntime, and defined in f64."""

import dataclasses

import numpy as np
import onnx_node

INPUTS = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value", "past_sequence_length",
          "cache_indirection")
OUTPUTS = ("output", "present_key", "present_value", "qk")
LEAST = float(np.finfo(np.float32).min)


@dataclasses.dataclass
class MultiHeadAttention:
    """inputs: name -> array. outputs: names of those wanted."""

    inputs: dict
    attributes: dict
    outputs: tuple = ("output",)

    def heads(self):
        """Q, K and V of the inputs as [batch, heads, rows, columns] in f64, with their bias."""
        n = self.attributes["num_heads"]
        wide = {name: array.astype(np.float64) for name, array in self.inputs.items() if array.dtype != np.int32}
        query, key, value = (wide.get(name) for name in INPUTS[:3])
        of_rows = lambda x: x.reshape(*x.shape[:2], n, -1)
        cross = key is not None and key.ndim == 4
        if query.ndim == 5:
            parts = [query[:, :, :, part] for part in range(3)]
        elif key.ndim == 5:
            parts = [of_rows(query), key[:, :, :, 0], key[:, :, :, 1]]
        elif cross:
            parts = [of_rows(query), key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)]
        else:
            parts = [of_rows(x) for x in (query, key, value)]
        if "bias" in wide:
            hidden = n * parts[0].shape[-1]
            biases = np.split(wide["bias"], [hidden, 2 * hidden])
            parts = [x if cross and at else x + bias.reshape(n, -1)
                     for at, (x, bias) in enumerate(zip(parts, biases, strict=True))]
        return [x.transpose(0, 2, 1, 3) for x in parts]

    def caches(self, new):
        """The length of the past, and K and V of all rows; in a shared buffer those of each entry's beam."""
        if "past_key" not in self.inputs:
            return 0, new
        pasts = [self.inputs[f"past_{name}"].astype(np.float64) for name in ("key", "value")]
        length = pasts[0].shape[2]
        if "past_sequence_length" in self.inputs:
            length = int(self.inputs["past_sequence_length"].reshape(-1)[0])
            if (beams := self.inputs.get("cache_indirection")) is not None:
                count = beams.shape[1]
                for past in pasts:
                    before = past.copy()
                    for b in range(len(past)):
                        for j in range(length):
                            past[b, :, j] = before[b // count * count + beams[b // count, b % count, j], :, j]
        return length, [np.concatenate([past[:, :, :length], x], 2) for past, x in zip(pasts, new, strict=True)]

    def added(self, shape, past):
        """What masks and bias add to scores [batch, heads, rows, keys]; LEAST where a causal row does not see."""
        batch, _, rows, keys = shape
        added, j = np.zeros(shape), np.arange(keys)
        if (mask := self.inputs.get("key_padding_mask")) is not None:
            lengths = mask.ndim == 1
            keeps = j < mask[:batch, None, None, None] if lengths else mask.reshape(batch, 1, -1, keys) > 0
            added = np.where(keeps, added, self.attributes.get("mask_filter_value", -10000.0))
        if (bias := self.inputs.get("attention_bias")) is not None:
            added = added + bias.astype(np.float64)
        if self.attributes.get("unidirectional") == 1 and rows > 1:
            last = np.arange(rows)[:, None] == rows - 1  # sees all, as onnxruntime has it
            added = np.where((j > np.arange(rows)[:, None] + past) & ~last, LEAST, added)
        return added

    def exact(self):
        """Every output by name, in f64."""
        q, *new = self.heads()
        past, (k, v) = self.caches(new)
        scores = q @ k.swapaxes(2, 3) * (self.attributes.get("scale") or q.shape[-1]**-0.5)
        scores = np.maximum(scores + self.added(scores.shape, past), LEAST)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y = weights / weights.sum(-1, keepdims=True) @ v
        presents = [k, v]
        if "past_sequence_length" in self.inputs and past < self.inputs.get("past_key", np.empty((0, 0, 0))).shape[2]:
            # Of a shared buffer the rows of the entry itself; behind them nothing is said.
            presents = [self.inputs[f"past_{name}"].astype(np.float64).copy() for name in ("key", "value")]
            for present, x in zip(presents, new, strict=True):
                present[:, :, past:past + x.shape[2]] = x
        return dict(zip(OUTPUTS, (y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1), *presents, scores), strict=True))

    def by_onnxruntime(self, library=None, in_place=False):
        """The outputs of a session with this node, each poisoned before the run; in place, past and present are one buffer."""
        feeds, results = {name: array.copy() for name, array in self.inputs.items()}, self.results()
        for name in ("key", "value") if in_place else ():
            results[f"present_{name}"] = feeds[f"past_{name}"]
        self.node().run(feeds, results, library)
        return results

    def node(self):
        return onnx_node.Node("MultiHeadAttention", "com.microsoft", INPUTS, OUTPUTS, self.attributes)

    def results(self):
        exact = self.exact()
        return {name: np.full(exact[name].shape, np.nan, self.inputs["query"].dtype) for name in self.outputs}
