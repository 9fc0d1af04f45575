"""YaRN: the angles of a RoPE whose context is longer than the model was trained on.

Peng, Quesnelle, Fan and Shippole, "YaRN: Efficient Context Window Extension of Large Language Models", arXiv:2309.00071.
Columns that turn often within the trained context keep their frequency, those that hardly turn have it divided by the
scaling factor, and between them lies a ramp. Tensors are torch's; where torch is not installed, and the device is "cpu",
NumPy's.
"""

import importlib.util
import math

from heddle import _checks

__all__ = ["compute_yarn_freqs", "compute_yarn_inv_freq", "yarn_get_mscale"]


def yarn_get_mscale(scaling_factor: float, mscale_factor: float = 1.0) -> float:
    """What scores' square root is multiplied by: 0.1 mscale_factor ln(scaling_factor) + 1; 1 for a factor of 1 or less."""
    scaling_factor = _checks.number("scaling_factor", scaling_factor)
    mscale_factor = _checks.number("mscale_factor", mscale_factor)
    return 0.1 * mscale_factor * math.log(scaling_factor) + 1.0 if scaling_factor > 1 else 1.0


def compute_yarn_inv_freq(head_dim: int, *, base: float = 10000.0, scaling_factor: float = 1.0,
                          original_max_position: int = 4096, beta_fast: float = 32.0, beta_slow: float = 1.0,
                          device: object = "cuda", dtype: object = None):
    """Angles per position, [head_dim / 2], f32 unless `dtype` says otherwise.

    beta_fast, beta_slow: turns within original_max_position from which on a column keeps its frequency, and down from which
    it has all of it divided.
    """
    values = _inverse_frequencies(head_dim, base, scaling_factor, original_max_position, beta_fast, beta_slow)
    return _library(device).array(values, dtype)


def compute_yarn_freqs(max_seq_len: int, head_dim: int, *, base: float = 10000.0, scaling_factor: float = 1.0,
                       original_max_position: int = 4096, beta_fast: float = 32.0, beta_slow: float = 1.0,
                       mscale_factor: float = 1.0, mscale_all_dim_factor: float = 0.0, device: object = "cuda",
                       dtype: object = None):
    """(freqs, mscale): freqs as `rope` takes them, [max_seq_len, 1, 1, head_dim], angles in the first half of the columns and 0
    in the other; and the output_scale of query and key."""
    if _checks.whole("max_seq_len", max_seq_len) < 1:
        raise ValueError(f"max_seq_len is {max_seq_len}, expected 1 at least.")
    values = _inverse_frequencies(head_dim, base, scaling_factor, original_max_position, beta_fast, beta_slow)
    mscale = yarn_get_mscale(scaling_factor, mscale_factor)
    if _checks.number("mscale_all_dim_factor", mscale_all_dim_factor) != 0:
        mscale /= yarn_get_mscale(scaling_factor, mscale_all_dim_factor)
    return _library(device).angles(max_seq_len, values, dtype), mscale


def _inverse_frequencies(head_dim, base, factor, longest, beta_fast, beta_slow):
    if _checks.whole("head_dim", head_dim) < 2 or head_dim % 2:
        raise ValueError(f"head_dim is {head_dim}, expected an even number, 2 at least.")
    longest = _checks.whole("original_max_position", longest)
    numbers = {"base": base, "scaling_factor": factor, "beta_fast": beta_fast, "beta_slow": beta_slow}
    base, factor, beta_fast, beta_slow = (_checks.number(what, given) for what, given in numbers.items())
    for what, given, least in (("base", base, 1), ("original_max_position", longest, 0), ("beta_fast", beta_fast, 0),
                               ("beta_slow", beta_slow, 0)):
        if not given > least:
            raise ValueError(f"{what} is {given}, expected more than {least}.")
    kept = [base**(-2 * j / head_dim) for j in range(head_dim // 2)]
    if factor <= 1:
        return kept

    def column(turns):
        """Where a column turns so often within the trained context: longest * base^(-2 j / head_dim) = 2 pi turns."""
        return head_dim * math.log(longest / (2 * math.pi * turns)) / (2 * math.log(base))

    first, last = max(math.floor(column(beta_fast)), 0), min(math.ceil(column(beta_slow)), head_dim - 1)
    width = last - first or 1e-3
    divided = [min(max((j - first) / width, 0.0), 1.0) for j in range(head_dim // 2)]
    return [f * (1 - share) + f / factor * share for f, share in zip(kept, divided, strict=True)]


class _Torch:
    def __init__(self, device):
        import torch

        self._torch, self._device = torch, device

    def array(self, values, dtype):
        return self._torch.tensor(values, dtype=self._torch.float64, device=self._device).to(self._type(dtype))

    def angles(self, rows, values, dtype):
        torch = self._torch
        turned = torch.arange(rows, dtype=torch.float64, device=self._device)[:, None] * self.array(values, torch.float64)
        return torch.cat([turned, torch.zeros_like(turned)], 1).to(self._type(dtype))[:, None, None, :]

    def _type(self, dtype):
        if dtype is not None and not isinstance(dtype, self._torch.dtype):
            raise TypeError(f"dtype is of type {type(dtype).__name__}, expected a torch.dtype.")
        return dtype or self._torch.float32


class _NumPy:
    def array(self, values, dtype):
        import numpy

        return numpy.asarray(values, dtype or numpy.float32)

    def angles(self, rows, values, dtype):
        import numpy

        turned = numpy.outer(numpy.arange(rows), numpy.asarray(values))
        return numpy.concatenate([turned, numpy.zeros_like(turned)], 1).astype(dtype or numpy.float32)[:, None, None, :]


def _library(device):
    if importlib.util.find_spec("torch"):
        return _Torch(device)
    if str(device) != "cpu":
        raise RuntimeError(f"torch is not installed, which makes tensors on {device!r}, expected it or device='cpu'.")
    return _NumPy()
