"""The judge of random programs can fail, and what it judges by says what programs mean."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "programs"))

from choices import Choices  # noqa: E402
from interpreter import Exactly, InOwnTypes, evaluate  # noqa: E402
from judge import judge  # noqa: E402
from program import generate  # noqa: E402
from text import Written  # noqa: E402


def rows(seed=0, count=20, length=8):
    return np.random.default_rng(seed).standard_normal((count, length))


def given(exact, original=None, fused=None, others=None, dtype=np.float32, **more):
    """The verdict on arrays that are the truth but where said."""
    original = exact.astype(dtype) if original is None else original.astype(dtype)
    others = [original, original] if others is None else others
    return judge(original, original.copy() if fused is None else fused.astype(dtype), exact, others, **more)


class TestJudge:
    def test_the_same_is_right(self):
        assert not given(rows()).wrong

    def test_one_wrong_row_of_many(self):
        fused = rows()
        fused[7, 3] += 1e-4
        assert given(rows(), fused=fused).rows_wrong == 1

    def test_a_row_as_far_as_the_original_is_right(self):
        error = 1e-5 * rows(1)
        assert not given(rows(), rows() + error, rows() - error).wrong
        assert given(rows(), rows() + error, rows() - 4 * error).wrong

    def test_a_small_row_beside_large_ones(self):
        exact = rows()
        exact[4] *= 1e-3
        fused = exact.copy()
        fused[4] *= 1.01
        assert given(exact, fused=fused).rows_wrong == 1

    def test_an_original_far_from_the_truth_is_to_be_met(self):
        original = rows(2)
        assert not given(rows(), original, original + 1e-6).wrong
        assert given(rows(), original, rows()).wrong  # nearer to the truth, and another program

    def test_an_original_that_overflowed_need_not_be_met(self):
        original = rows(2)
        assert not given(rows(), original, rows(), overflowed=True).wrong
        assert given(rows(), original, rows() * 1.001, overflowed=True).wrong

    def test_what_overflows(self):
        def unshifted(x):
            e = jnp.exp(x)
            return e / e.sum()

        found = []
        for x in ([50.0, 40.0], [-1e9, 40.0], [-jnp.inf, 40.0], [jnp.inf, 40.0], [100.0, 40.0]):
            rounding = InOwnTypes(1)
            evaluate(jax.make_jaxpr(unshifted)(jnp.asarray(x)), [np.asarray(x)], rounding)
            found.append(rounding.overflowed)
        assert found == [False, False, False, False, True]

    def test_roundings_that_decide_a_row_are_allowed_for(self):
        original, others = rows(2), [rows(3), rows(4)]
        assert not given(rows(), original, rows(5), others).wrong

    def test_what_is_not_finite(self):
        fused = rows()
        fused[3, 1] = np.nan
        assert given(rows(), fused=fused).wrong
        original = rows()
        original[3] = np.nan
        verdict = given(rows(), original)
        assert not verdict.wrong
        assert verdict.finite == 0.95
        assert given(rows(), original * np.nan).finite == 0
        empty = rows()
        empty[3] = 0
        assert given(empty, fused=np.where(empty == 0, np.nan, empty)).rows_wrong == 1
        assert not given(empty, fused=np.where(empty == 0, np.nan, empty), overflowed=True).wrong

    def test_types_shapes_and_whole_numbers(self):
        same = rows().astype(np.float32)
        assert judge(same, same.T, rows(), [rows()] * 2).wrong
        assert judge(same, rows(), rows(), [rows()] * 2).wrong
        counts = np.arange(5)
        assert not judge(counts, counts, counts, [counts] * 2).wrong
        assert judge(counts, counts[::-1], counts, [counts] * 2).wrong

    def test_narrow_types(self):
        exact = rows()
        rounded = exact.astype(np.float16)
        assert not given(exact, rounded, exact * 1.0004, dtype=np.float16).wrong
        assert given(exact, rounded, exact * 1.05, dtype=np.float16).wrong


def integers(x):
    """Wrapping, truncation, shifts and comparisons in narrow types."""
    small = (x * 10).astype(jnp.int8)
    return (small * 7, small // 7, (x * 1.7).astype(jnp.int32), jnp.abs(x).astype(jnp.uint8) - 1, (small - 5).astype(jnp.uint32) < 9,
            lax_shift(small), jnp.cumsum(small, 0, dtype=jnp.int8), x.astype(jnp.int32) % 3)


def lax_shift(small):
    return jax.lax.shift_right_logical(small, jnp.int8(2))


def drawn(key):
    key = jax.random.wrap_key_data(key)
    first, second = jax.random.split(key)
    return jax.random.bernoulli(first, 0.7, (3, 5)), jax.random.uniform(jax.random.fold_in(second, 9), (4,))


def movement(x):
    return (jnp.pad(x, ((1, 0), (0, 2))), x[::-1, 1:], jnp.concatenate([x, x], 1), x[jnp.array([2, 0])], jnp.sort(x, 1),
            jnp.tril(x), jnp.repeat(x, 2, 0), x.reshape(-1, 2), jnp.roll(x, 1, 0), jnp.argmax(x, 1))


def loops(x):
    total, kept = jax.lax.scan(lambda a, b: (a + b, a * b), jnp.zeros(4), x)
    return total, kept, jax.lax.fori_loop(0, 3, lambda i, y: y * 1.5 + i, x), jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)


def gradients(x):
    weigh = lambda x: jnp.sum(jax.nn.softmax(x @ x.T) @ jnp.tanh(x))
    return jax.grad(weigh)(x), jax.grad(jax.checkpoint(weigh))(x), jax.vmap(jax.grad(lambda y: jnp.sum(y**3)))(x)


@pytest.mark.parametrize("program", [integers, movement, loops, gradients])
def test_interpreter_says_what_jax_does(program):
    x = (3 * rows(count=6, length=4)).astype(np.float32)
    for rounding in (Exactly(), InOwnTypes(1)):
        found = evaluate(jax.make_jaxpr(program)(x), [x], rounding)
        for f, e in zip(found, jax.tree.leaves(program(x)), strict=True):
            np.testing.assert_allclose(f, np.asarray(e), rtol=1e-5, atol=1e-5)


def test_interpreter_draws_the_bits_that_jax_draws():
    key = np.array([7, 11], np.uint32)
    for f, e in zip(evaluate(jax.make_jaxpr(drawn)(key), [key], Exactly()), drawn(key), strict=True):
        np.testing.assert_array_equal(f, np.asarray(e))


def test_own_types_round_and_the_truth_does_not():
    x = np.float32(1) + np.float32(2.0**-10)
    closed = jax.make_jaxpr(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32))(x)
    assert evaluate(closed, [x], Exactly())[0] == x
    assert evaluate(closed, [x], InOwnTypes(1))[0] == 1
    swallowed = jax.make_jaxpr(lambda x: (x + 1e9) - 1e9)(x)
    assert abs(evaluate(swallowed, [x], Exactly())[0] - x) < 1e-6
    assert evaluate(swallowed, [x], InOwnTypes(1))[0] == 0


def test_a_seed_says_the_whole_program():
    first, second = (Written(generate(11)[0], 11) for _ in range(2))
    assert first.source == second.source
    for a, b in zip(first.arguments, second.arguments, strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float64), np.asarray(b, np.float64))
    assert generate(12)[0] != first.source


def test_a_choice_made_otherwise_leaves_the_others():
    choices = next(c for c in (generate(seed)[1] for seed in range(20)) if len(c.made) > 6)
    name = list(choices.made)[-1]
    changed = generate(choices.seed, {name: "plain"})[1]
    assert name not in changed.made
    assert set(list(choices.made)[:3]) <= set(changed.made) | {name}


def test_choices_are_spread():
    found = {Choices(seed)("thing", "plain", "b", "c") for seed in range(60)}
    assert found == {"plain", "b", "c"}


ENDING = """
def program(fuse):
    if {condition}:
        import os
        os.abort()
    return fuse(lambda x: x)

def inputs():
    return [draw("x").normal(3)]
"""


@pytest.mark.parametrize("condition, outcome", [("fuse.__name__ == 'fuse'", "raised"), ("True", "no program")])
def test_a_process_that_ends(root, tmp_path, condition, outcome):
    """Fails the run if the original alone does not end it: XLA has crashes of its own."""
    program = tmp_path / "ends.py"
    program.write_text(ENDING.format(condition=condition), encoding="utf-8")
    run = subprocess.run([sys.executable, root / "tests" / "programs" / "main.py", program], capture_output=True, text=True, timeout=300)
    assert f"1 {outcome}" in run.stdout and run.returncode == (outcome == "raised"), run.stdout + run.stderr
    assert "the process ended with status -6" in run.stdout


def test_every_trap_is_right_or_left_alone(root):
    """In a process of its own: how XLA compiles there is quick."""
    run = subprocess.run([sys.executable, root / "tests" / "programs" / "main.py", "--traps"], capture_output=True, text=True,
                         timeout=900)
    assert run.returncode == 0, run.stdout
