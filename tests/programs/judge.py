"""The rule by which a fused program is right or wrong: its outputs beside the original's and the truth, row by row.

A row is what lies along an output's last axis, so that one wrong row of many shows. Three measures of a row decide:

- The truth, the program in f64: the fused row may be twice as far from it as the original, or as the program evaluated
  again with other roundings, is.
- The original itself, where it is far from the truth (additive terms that swallow scores, roundings that are meant):
  then the fused row must be as near to the original as the program with other roundings is. A program that overflowed
  (an exponential without its maximum, the square of a sum of them) need not be followed: the truth will do.
- Below a few units in the last place of the row, or one of the whole output, nothing is told apart.
"""

from dataclasses import dataclass, field

import numpy as np

FAR = {2: 5e-2, 4: 1e-2, 8: 1e-9}  # an original this far from the truth, of its row, means something else by its types
NEAR = {2: 2e-2, 4: 1e-4, 8: 1e-10}  # and so near to it a fused row must be
UNIT = {1: 2.0**-3, 2: 2.0**-8, 4: 2.0**-23, 8: 2.0**-52}


@dataclass
class Verdict:
    """Of one output: `wrong`, one sentence for each way in which it is; how much of it could be compared."""

    wrong: list = field(default_factory=list)
    finite: float = 1.0
    rows: int = 0
    rows_wrong: int = 0
    largest: float = 0.0  # a row's distance from the truth, of the row's size
    allowed: float = 0.0  # at that row
    size: float = 0.0  # the largest value, and how far from the truth the original and the fused output are at most
    original_off: float = 0.0
    fused_off: float = 0.0


def judge(original, fused, exact, others, coarse=(), unit=0.0, overflowed=False):
    """original, fused: arrays as the two programs gave them. exact: the truth, f64. others: the program evaluated
    again in its own types, each with other roundings. `coarse` are evaluations whose weights are disturbed by more than
    that, as much as by their rounding to floats of 16 bits in a program that has such: `unit` is theirs then.
    `overflowed`: whether the program in its own types made an infinity of finite numbers."""
    verdict = Verdict()
    if original.shape != fused.shape or original.dtype != fused.dtype:
        verdict.wrong.append(f"{fused.dtype}{list(fused.shape)} instead of {original.dtype}{list(original.shape)}")
        return verdict
    if original.dtype.kind in "biu":
        same = original == fused
        if not same.all():
            verdict.wrong.append(f"{(~same).sum()} of {same.size} whole numbers differ")
        return verdict
    size = min(8, original.dtype.itemsize)
    original, fused = (np.atleast_1d(np.asarray(x, np.float64)) for x in (original, fused))
    exact, *others = (np.atleast_1d(np.asarray(x, np.float64)).reshape(original.shape) for x in (exact, *others, *coarse))
    finite = np.isfinite(original)
    verdict.finite = float(finite.mean()) if finite.size else 1.0
    if not finite.any():
        return verdict
    broken = finite & np.all([np.isfinite(x) for x in others], axis=0) & ~np.isfinite(fused)
    # A zero may be what a select makes of a NaN: of scores of +inf, say, whose weights are all dropped.
    if overflowed:
        broken &= original != 0
    compared = finite & np.isfinite(fused)
    unknown = (compared & ~np.isfinite(exact)).any(-1)  # an f32 may hold what overflows in no f64, and the other way round
    # Values that are not compared are 0 in all of them, and an evaluation that gives none counts as the original.
    original, fused, exact, *others = (np.where(compared, np.where(np.isfinite(x), x, original), 0.0)
                                       for x in (original, fused, exact, *others))
    others, coarse = others[:len(others) - len(coarse)], others[len(others) - len(coarse):]

    away = lambda x, y: np.max(np.abs(x - y), axis=-1, initial=0.0)
    scale = np.maximum(away(exact, 0), away(original, 0))
    way = 2 if unit > 2.0**-24 else size
    # Inputs are of size 1: what is left of them where all cancels (the gradient of rows with one key) is no figure.
    floor = UNIT[size] * (8 * scale + 2 * scale.max()) + 80 * UNIT[max(size, 4)]
    if way == 2:
        floor = np.maximum(floor, unit * (2 * scale + 8 * scale.max() + 10))
    spread = np.max([away(x, original) for x in others], axis=0)
    of_original = np.max([away(x, exact) for x in (original, *others)], axis=0)
    unusual = unknown | (of_original > FAR[way] * scale)
    # Sixteen bits round what a call may hold in 32, and what cancels leaves a row of roundings: nearer to the truth than
    # these come is no other program.
    rounded = (way == 2) | (of_original < 1e-4 * scale.max())
    unusual &= unknown | ~rounded | (away(fused, exact) > (1 if way == 2 else 0.5) * away(original, exact))
    narrow = np.max([away(x, y) for x, y in zip(coarse, others)], axis=0) if coarse else 0.0
    # A call takes rowsum(dO * O), with O rounded, where the program has a sum of P * dP that cancels less.
    allowed = 2 * of_original + 4 * spread + 12 * narrow + floor
    # Where the program's own roundings decide a row, two evaluations of it may be as far apart as two of its values.
    allowed = np.where(unusual, np.minimum(allowed, 4 * spread + 12 * narrow + NEAR[way] * scale), allowed)
    distance = np.where(unusual, away(fused, original), away(fused, exact))
    far = distance > np.maximum(allowed, floor)
    if overflowed:
        far &= unknown | (away(fused, exact) > np.maximum(NEAR[way] * away(exact, 0), floor))
    lost = broken.any(-1)
    verdict.rows, verdict.rows_wrong = far.size, int((far | lost).sum())
    worst = np.unravel_index(np.argmax(np.where(far, distance / np.maximum(scale, 1e-300), -1)), far.shape)
    verdict.largest = float(np.max(distance / np.maximum(scale, scale.max() * UNIT[size] + 1e-300)))
    verdict.allowed = float(allowed[worst] / max(scale[worst], 1e-300))
    known = ~unknown
    verdict.size = float(scale.max())
    verdict.original_off = float(np.max(away(original, exact), where=known, initial=0.0))
    verdict.fused_off = float(np.max(away(fused, exact), where=known, initial=0.0))
    if lost.any():
        at = tuple(map(int, np.argwhere(broken)[0]))
        verdict.wrong.append(f"{broken.sum()} values are not finite where the original's are, the first at {at}")
    if far.any():
        verdict.wrong.append(
            f"{far.sum()} of {far.size} rows are wrong; row {tuple(map(int, worst))} differs by {distance[worst]:.3g} from "
            f"{'the original' if unusual[worst] else 'the truth'}, of a row as large as {scale[worst]:.3g}; allowed is "
            f"{allowed[worst]:.3g}. original: {_few(original[worst])}, fused: {_few(fused[worst])}, truth: "
            f"{_few(exact[worst])}")
    return verdict


def _few(row):
    return "[" + ", ".join(f"{x:.5g}" for x in row[:4]) + (", ...]" if row.size > 4 else "]")
