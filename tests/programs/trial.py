"""One program, original and fused, run by JAX's XLA on the CPU and judged against its truth."""

import time
from dataclasses import asdict, dataclass, field

import heddle.jax
import jax
import numpy as np
from heddle.jax import _fused_program
from interpreter import Coarsely, Exactly, InOwnTypes, coarsest, evaluate
from judge import judge
from large_arrays import large_arrays

# What a program came to. "wrong" and "raised" are failures; "no figures" had nothing finite to compare in an output.
OUTCOMES = ("right", "left alone", "no figures", "wrong", "raised", "hung", "no program")


@dataclass
class Outcome:
    outcome: str
    fusions: list = field(default_factory=list)  # of the rewriter's report: the meaning of each call
    refusals: list = field(default_factory=list)
    left: list = field(default_factory=list)  # arrays as large as scores that are for no call: a sentence each
    complaints: list = field(default_factory=list)  # a sentence for each output that is wrong
    finite: list = field(default_factory=list)  # of each output, the share that could be compared
    largest: float = 0.0
    # The largest error of any output, of its largest value or of a thousandth of all outputs'.
    original_off: float = 0.0
    fused_off: float = 0.0
    seconds: dict = field(default_factory=dict)

    def failed(self):
        return self.outcome in ("wrong", "raised", "hung")

    def as_dict(self):
        return asdict(self)


class Reports:
    """The rewriter's reports on what is fused while this is open."""

    def __enter__(self):
        self._rewrite = rewrite = _fused_program.fuse_module
        self.fusions, self.refusals = [], []

        def noted(serialized, device):
            module, report = rewrite(serialized, device)
            if module is not None:
                self.fusions += report["fusions"]
            self.refusals += report["refusals"]
            return module, report

        _fused_program.fuse_module = noted
        return self

    def __exit__(self, *_):
        _fused_program.fuse_module = self._rewrite


def tried(program, arguments, names_left=False):
    """The Outcome of `program`, a function of `fuse` that gives a function of `arguments`: given heddle.jax.fuse it is
    the fused program, given a function that changes nothing the original. `names_left` looks for arrays of rows and keys."""
    seconds, started = {}, time.perf_counter()

    def passed(name):
        nonlocal started
        seconds[name] = round(time.perf_counter() - started, 4)
        started = time.perf_counter()

    try:
        closed = jax.make_jaxpr(program(lambda f, **_: f))(*arguments)
        passed("traced")
    except Exception as error:  # the generator's mistake: no program that JAX takes
        return Outcome("no program", complaints=[_sentence(error)])
    with Reports() as reports:
        try:
            lowered = jax.jit(program(heddle.jax.fuse)).lower(*arguments)
            passed("rewritten")
            if not reports.fusions:
                return Outcome("left alone", refusals=_reasons(reports.refusals), seconds=seconds)
            left = large_arrays(lowered.as_text("hlo"), reports.fusions).left if names_left else []
            found = [np.asarray(x) for x in jax.tree.leaves(lowered.compile()(*arguments))]
            passed("fused")
        except Exception as error:
            outcome = "raised" if _compiles(program, arguments) else "no program"
            return Outcome(outcome, reports.fusions, _reasons(reports.refusals), complaints=[_sentence(error)])
    try:
        original = jax.jit(lambda *x: jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *x)).lower(*arguments).compile()
        expected = [np.asarray(x) for x in original(*arguments)]
        passed("original")
        truth = evaluate(closed, arguments, Exactly())
        own_types = InOwnTypes(1), InOwnTypes(2)
        others = [evaluate(closed, arguments, rounding) for rounding in own_types]
        unit = coarsest(closed.jaxpr)
        # Also in f32: of what cancels whole in one evaluation (a row with one key), others leave roundings.
        coarse = [evaluate(closed, arguments, Coarsely(seed, max(unit, 2.0**-20))) for seed in (3, 4)]
    except Exception as error:
        return Outcome("no program", complaints=[_sentence(error)])
    passed("truth")
    overflowed = any(rounding.overflowed for rounding in own_types)
    verdicts = [judge(*x, [c[i] for c in coarse], unit, overflowed)
                for i, x in enumerate(zip(expected, found, truth, zip(*others), strict=True))]
    outcome = Outcome("right", reports.fusions, _reasons(reports.refusals), left,
                      [f"output {i}: {sentence}" for i, verdict in enumerate(verdicts) for sentence in verdict.wrong],
                      [round(verdict.finite, 3) for verdict in verdicts],
                      max((verdict.largest for verdict in verdicts), default=0.0), seconds=seconds)
    least = 1e-3 * max((verdict.size for verdict in verdicts), default=0.0) or 1.0
    outcome.original_off = max((v.original_off / max(v.size, least) for v in verdicts), default=0.0)
    outcome.fused_off = max((v.fused_off / max(v.size, least) for v in verdicts), default=0.0)
    if outcome.complaints:
        outcome.outcome = "wrong"
    elif not all(outcome.finite):
        outcome.outcome = "no figures"
    return outcome


def ended(how, program, arguments):
    """The Outcome of a program with which a process ended, where the original alone does not end it."""
    try:
        jax.block_until_ready(jax.jit(program(lambda f, **_: f))(*arguments))
    except Exception as error:
        return Outcome("no program", complaints=[_sentence(error)])
    return Outcome("raised", complaints=[how])


def _compiles(program, arguments):
    try:
        jax.jit(program(lambda f, **_: f)).lower(*arguments).compile()
    except Exception:
        return False
    return True


def _reasons(refusals):
    return sorted({refusal.get("reason", str(refusal)) for refusal in refusals})


def _sentence(error):
    return f"{type(error).__name__}: {error}"[:2000]
