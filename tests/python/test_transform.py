"""The transformation that XLA's hook is given, on serialized modules: against the text form, and run by XLA."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle import Error
from heddle._module import fuse_module
from heddle.jax import _internals, _live, register

HLO = Path(__file__).parents[1] / "data" / "hlo"
DEVICE = "cuda" if jax.default_backend() == "gpu" else "cpu"
MODULES = sorted(path.name.removesuffix(".hlo") for path in HLO.glob("*.hlo"))


@pytest.fixture(scope="module", autouse=True)
def registered():
    register()


def proto(name):
    return _internals.proto_of_text((HLO / f"{name}.hlo").read_text(encoding="utf-8"))


def essence(serialized):
    """HLO text with all names taken afresh and nothing that only people read."""
    return _internals.canonical_text_of_proto(serialized)


def random_arguments(serialized, seed=0):
    """Weights so small that a GPT does not amplify what sums in another order differ by."""
    generator = np.random.default_rng(seed)
    return [jnp.asarray(0.3 * generator.standard_normal(shape) if jnp.issubdtype(dtype, jnp.floating)
                        else generator.integers(0, 7, shape), dtype)
            for shape, dtype in _internals.parameters_of_proto(serialized)]


def results(serialized, arguments, device):
    """With the products of f32 in f32: on a GPU, XLA takes them in tf32 unless they ask for more."""
    text = re.sub(r"(rhs_contracting_dims={[\d,]*})", r"\1, operand_precision={highest,highest}",
                  _internals.text_of_proto(serialized))
    executable = _internals.compile_proto(_internals.proto_of_text(text), device)
    found = executable.execute_sharded(jax.device_put(arguments, device)).disassemble_into_single_device_arrays()
    return [np.asarray(result[0]) for result in found]


@pytest.mark.parametrize("name", MODULES)
def test_the_same_program_as_through_text(heddle, tmp_path, name):
    """Serialized -> fused -> serialized is text -> fused -> text, in XLA's eyes."""
    fused, report = fuse_module(proto(name), DEVICE)
    path = tmp_path / "fused.hlo"
    run = heddle("fuse", HLO / f"{name}.hlo", "--device", DEVICE, "-o", path, "--report", tmp_path / "report.json")
    assert run.returncode == 0, run.stderr
    assert report["fusions"]
    assert essence(fused) == essence(_internals.proto_of_text(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", MODULES)
def test_idempotent(name):
    fused, _ = fuse_module(proto(name), DEVICE)
    again, report = fuse_module(fused, DEVICE)
    assert again is None
    assert report["fusions"] == []


# The bf16 programs round in other places, and their errors are judged by `heddle fuse --verify`.
@pytest.mark.parametrize("name", [name for name in MODULES if "f32" in name])
def test_runs_in_xla_with_the_same_values(name):
    before = proto(name)
    after, _ = fuse_module(before, DEVICE)
    arguments = random_arguments(before)
    expected = results(before, arguments, jax.devices("cpu")[0])
    for expected, found in zip(expected, results(after, arguments, jax.devices()[0]), strict=True):
        assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)


def shape_at(text):
    """The shape that text begins with, layouts and all, without the comments that number a tuple's elements."""
    text = re.sub(r"/\*.*?\*/", "", text)
    if not text.startswith("("):
        return re.match(r"\w+\[[^\]]*\](\{[^}]*\})?", text).group()
    depth = 0
    for end, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[:end + 1]


def entry_layout(serialized):
    """The declared shape of the results, and the entry root's own."""
    text = _internals.text_of_proto(serialized)
    root = re.search(r"ROOT \S+ = ", text[text.index("\nENTRY"):])
    return shape_at(text[text.index(")->") + 3:]), shape_at(text[text.index("\nENTRY") + root.end():])


@pytest.mark.parametrize("name", MODULES)
def test_declared_layouts_are_kept_and_the_root_has_them(name):
    """XLA takes a program's layouts from its entry's parameters and root when a pass hands a module back."""
    before = proto(name)
    after, _ = fuse_module(before, DEVICE)
    wanted, _ = entry_layout(before)
    assert entry_layout(after) == (wanted, wanted)


def test_nothing_to_fuse_leaves_the_bytes_alone():
    serialized = jax.jit(lambda x: jax.nn.softmax(x @ x)).lower(jnp.ones((8, 8))).compiler_ir(
        "hlo").as_serialized_hlo_module_proto()
    fused, report = fuse_module(serialized, DEVICE)
    assert fused is None
    assert report["fusions"] == []
    assert _live.transform(serialized, DEVICE) is None


def test_two_threads_at_once():
    """Every thread gets the bytes that one alone gets."""
    given = [proto(name) for name in MODULES[:6]]
    alone = [fuse_module(serialized, DEVICE)[0] for serialized in given]
    with ThreadPoolExecutor(2) as pool:
        together = pool.map(lambda serialized: fuse_module(serialized, DEVICE)[0], 2 * given)
        assert list(together) == 2 * alone


class TestBadInput:
    def test_no_module(self):
        for serialized in (b"", b"HloModule x", b"\xff" * 64):
            with pytest.raises(Error) as caught:
                fuse_module(serialized, DEVICE)
            assert str(caught.value)

    def test_the_hook_swallows_and_logs(self, caplog):
        assert _live.transform(b"\xff" * 64, DEVICE) is None
        assert "compiled as written" in caplog.text

    def test_truncated(self):
        serialized = proto(MODULES[0])
        for length in range(0, len(serialized), len(serialized) // 50):
            with pytest.raises(Error):
                fuse_module(serialized[:length], DEVICE)
