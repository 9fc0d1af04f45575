"""A node of ONNX's Attention (versions 23 to 25) with arrays for its inputs: run by onnxruntime, and defined in f64."""

import dataclasses

import numpy as np
import onnx
import onnx_node
from onnx.reference import ReferenceEvaluator

INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


@dataclasses.dataclass
class Attention:
    """inputs: name -> array. outputs: names of those wanted."""

    inputs: dict
    attributes: dict
    outputs: tuple = ("Y",)
    opset: int = 23

    def heads(self, name):
        """An input as [batch, heads, rows, columns] in f64."""
        x = self.inputs[name].astype(np.float64)
        if x.ndim == 4:
            return x
        heads = self.attributes["q_num_heads" if name == "Q" else "kv_num_heads"]
        return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    def exact(self):
        """Every output by name, in f64."""
        q, k, v = (self.heads(name) for name in "QKV")
        past = 0
        if "past_key" in self.inputs:
            past = self.inputs["past_key"].shape[2]
            k = np.concatenate([self.inputs["past_key"].astype(np.float64), k], 2)
            v = np.concatenate([self.inputs["past_value"].astype(np.float64), v], 2)
        (batch, heads, rows, size), keys, group = q.shape, k.shape[2], q.shape[1] // k.shape[1]
        shape = batch, heads, rows, keys
        raw = q @ np.repeat(k, group, 1).swapaxes(2, 3) * self.attributes.get("scale", 1 / np.sqrt(size))
        cap = self.attributes.get("softcap", 0)
        capped = cap * np.tanh(raw / cap) if cap else raw
        added, j = np.zeros(shape), np.arange(keys)
        nonpad = self.inputs.get("nonpad_kv_seqlen")
        if (mask := self.inputs.get("attn_mask")) is not None:
            number = np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
            padded = np.full((*number.shape[:-1], keys), -np.inf)
            padded[..., :number.shape[-1]] = number
            added = added + padded
        if nonpad is not None:
            added = np.where(j >= nonpad[:, None, None, None], -np.inf, added)
        offset = past if nonpad is None else (nonpad - rows)[:, None, None, None]
        place = np.arange(rows)[:, None] + offset
        left, right = (self.attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
        if self.attributes.get("is_causal"):
            right = 0
        if right >= 0:
            added = np.where(j > place + right, -np.inf, added)
        if left >= 0:
            added = np.where(j < place - left, -np.inf, added)
        masked = capped + added
        most = masked.max(-1, keepdims=True)
        weights = np.exp(masked - np.where(np.isfinite(most), most, 0))
        total = weights.sum(-1, keepdims=True)
        weights = np.divide(weights, total, out=np.zeros(shape), where=total != 0)
        y = weights @ np.repeat(v, group, 1)
        if self.inputs["Q"].ndim == 3:
            y = y.transpose(0, 2, 1, 3).reshape(batch, rows, -1)
        scores = (raw, capped, masked, weights)[self.attributes.get("qk_matmul_output_mode", 0)]
        return dict(zip(OUTPUTS, (y, k, v, scores), strict=True))

    def by_onnxruntime(self, library=None):
        """The outputs of a session with this node, each poisoned before the run."""
        results = self.results()
        self.node().run(self.inputs, results, library)
        return results

    def by_onnx(self):
        """The outputs that onnx's own evaluator gives."""
        model = onnx.load_from_string(self.node().model(self.inputs, self.results()))
        return dict(zip(self.outputs, ReferenceEvaluator(model).run(None, self.inputs), strict=True))

    def node(self):
        inputs = INPUTS[:6 if self.opset == 23 else 7]
        return onnx_node.Node("Attention", "", inputs, OUTPUTS, self.attributes, self.opset)

    def results(self):
        return {name: np.full(self.exact()[name].shape, np.nan, self.inputs["Q"].dtype) for name in self.outputs}
