"""heddle.jax.enable() where there is no GPU: what it says, and the parts of it that need none.

tests/gpu/test_live.py has what only a GPU can show.
"""

import heddle.jax
import jax
import jax.numpy as jnp
import pytest
from heddle.jax import _internals, _live, _versions
from heddle.jax.ffi import register

WITHOUT_HOOK = _internals.hlo_transformations() is None


def has_gpu():
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def attend(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8, axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


ARGUMENTS = [jnp.ones((1, 16, 2, 64))] * 3


def test_enable_says_what_to_do_instead():
    if has_gpu():
        pytest.fail("this file is for machines without a GPU; tests/gpu has the other half")
    with pytest.raises(RuntimeError, match=r"heddle\.jax\.fuse") as caught:
        heddle.jax.enable()
    assert ("JAX 0.10.2" in str(caught.value)) == WITHOUT_HOOK
    heddle.jax.disable()  # was never enabled: nothing to do


@pytest.fixture
def cache(tmp_path):
    settings = {"jax_compilation_cache_dir": str(tmp_path), "jax_persistent_cache_min_compile_time_secs": 0.0,
                "jax_persistent_cache_min_entry_size_bytes": 0}
    before = {name: getattr(jax.config, name) for name in settings}
    forget_cache()
    for name, value in settings.items():
        jax.config.update(name, value)
    yield lambda: {path.name for path in tmp_path.iterdir() if not path.name.endswith("-atime")}
    for name, value in before.items():
        jax.config.update(name, value)
    forget_cache()


def forget_cache():
    """JAX opens its cache once."""
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()


def compile_afresh():
    jax.clear_caches()
    jax.jit(lambda x: x * 3 + 1).lower(jnp.ones(8)).compile()


def test_the_compilation_cache_keeps_builds_apart(cache):
    compile_afresh()
    without = cache()
    assert without
    for words in (" heddle 0_1_0_aaaa", " heddle 0_1_0_bbbb"):
        before = cache()
        salt = _internals.CacheKeySalt(words)
        compile_afresh()
        assert len(cache() - before) >= 1, "a program compiled otherwise was served"
        entries = cache()
        compile_afresh()
        assert cache() == entries, "the same program was not served"
        salt.clear()
    entries = cache()
    compile_afresh()
    assert cache() == entries, "without Heddle, what was compiled without it is served"


def test_a_fused_program_is_cached_under_the_library_that_fused_it(cache, monkeypatch):
    def fused():
        jax.clear_caches()
        heddle.jax.fuse(attend).lower(*ARGUMENTS).compile()
        return cache()

    first = fused()
    assert fused() == first
    monkeypatch.setattr("heddle._library.identity", lambda: "0_1_0_another")
    assert len(fused()) > len(first)


@pytest.mark.skipif(WITHOUT_HOOK, reason="this JAX hands over no modules; the newest one runs this")
def test_the_hook_as_jax_calls_it():
    """JAX's in-process hook on the CPU hands over modules that XLA has fused already: they are read, and left."""
    registry = _internals.hlo_transformations()
    read = []

    def transform(serialized):
        read.append(_live.transform(serialized, "cpu"))
        return read[-1]

    registry.register_hlo_module_transformation(transform, name="heddle_test", platforms="cpu")
    try:
        jax.clear_caches()
        with_hook = jax.jit(attend)(*ARGUMENTS)
    finally:
        registry.clear_hlo_module_transformation("heddle_test", platforms="cpu")
    assert read
    assert jnp.allclose(with_hook, attend(*ARGUMENTS))


def test_the_pass_that_would_run_calls_twice_is_left_out():
    from jax._src import compiler

    register()
    options = compiler.get_compile_options(1, 1)
    left_out = options.executable_build_options.debug_options.xla_disable_hlo_passes
    assert left_out.split(",").count("dynamic-slice-fusion-rewriter-v2") == 1


def test_versions():
    assert _versions.refusal(jax.__version__) is None
    assert _versions.refusal("0.5.0") is None
    for version in ("0.4.38", "0.12.0", "1.0.0", "0.12.0.dev20261101"):
        assert version in _versions.refusal(version)
        assert "0.5.0 to 0.11.x" in _versions.refusal(version)


def test_versions_are_those_of_the_packaging_and_the_readme(root):
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    oldest, newest = _versions.OLDEST, _versions.NEWEST
    assert f'"jax>={oldest[0]}.{oldest[1]}.0,<{newest[0]}.{newest[1] + 1}"' in text
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert f"JAX {oldest[0]}.{oldest[1]}.0 to {newest[0]}.{newest[1]}.x" in readme


def test_doctor_of_an_installed_package():
    from heddle._command import python_state

    state = dict(python_state())
    assert jax.__version__ in state["jax"]
    assert "heddle.jax.fuse" in state["enable()"]
    assert "heddle" in state["package"]
