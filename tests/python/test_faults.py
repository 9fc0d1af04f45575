"""What goes wrong inside of Heddle never reaches the user's program: it is compiled as written, the reason logged once."""

import logging

import heddle.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heddle.jax import _faults, _fused_program, _live


@pytest.fixture
def told(caplog):
    """What Heddle has logged."""
    _faults.forget()
    caplog.set_level(logging.WARNING, logger="heddle")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "heddle"]


def attend(q):
    return jax.nn.softmax(q @ q.T) @ q


def other(q):
    return jax.nn.softmax(2 * q @ q.T) @ q


def run(f, q):
    np.testing.assert_allclose(heddle.jax.fuse(f)(q), f(q), rtol=1e-5, atol=1e-5)


Q = jnp.asarray(np.random.default_rng(0).standard_normal((12, 8)), jnp.float32)


@pytest.mark.parametrize("error", [RuntimeError("it broke"), MemoryError("it broke"), KeyError("it broke")])
def test_a_fault_is_logged_once_for_each_reason(monkeypatch, told, error):

    def broken(*_):
        raise error

    monkeypatch.setattr(_fused_program, "fuse_module", broken)
    run(attend, Q)
    run(other, Q)
    assert len(told()) == 1 and "heddle.jax.fuse(attend) is compiled as written" in told()[0] and "it broke" in told()[0]
    np.testing.assert_allclose(
        jax.grad(lambda q: heddle.jax.fuse(attend)(q).sum())(Q), jax.grad(lambda q: attend(q).sum())(Q), rtol=1e-4,
        atol=1e-5)
    assert len(told()) == 1


def test_what_cannot_be_put_back_is_compiled_as_written(monkeypatch, told):
    monkeypatch.setattr(_fused_program, "fuse_module", lambda *_: (b"no module", {"fusions": [1], "refusals": []}))
    run(attend, Q)
    assert len(told()) == 1


def test_a_failure_in_the_report_is_told(monkeypatch, told):
    report = {"module": "jit_f", "fusions": [], "refusals": [], "failure": "the rewriter failed: no such key"}
    for module in (_fused_program, _live):
        monkeypatch.setattr(module, "fuse_module", lambda *_: (None, report))
    run(attend, Q)
    assert told() == ["heddle.jax.fuse(attend) is compiled as written: the rewriter failed: no such key"]
    assert _live.transform(b"", "cpu") is None
    assert len(told()) == 1


def test_transform_logs_once(told):
    assert _live.transform(b"no module", "cpu") is None
    assert _live.transform(b"no module", "cpu") is None
    assert len(told()) == 1


def test_the_programs_own_errors_are_raised(told):

    def wrong(q):
        return q @ q

    with pytest.raises(TypeError):
        heddle.jax.fuse(wrong)(Q)
    assert not told()
