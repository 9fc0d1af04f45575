"""XLA's own parser accepts what Heddle's writer gives, and reads the same module from it."""

import pytest
from jaxlib import _hlo

FIXTURES = "tests/data/hlo"


def fixtures(root):
    return sorted((root / FIXTURES).glob("*.hlo"))


def canonical(text):
    """The module as XLA itself prints it, whatever names and spacing it was read with."""
    return _hlo.hlo_module_from_text(text).to_string()


def test_there_are_fixtures(root):
    assert len(fixtures(root)) >= 24


def test_xla_reads_what_heddle_writes(root, heddle, tmp_path):
    """Unfused parts are written as they were read: a module without attention comes back the same to XLA."""
    plain = tmp_path / "plain.hlo"
    plain.write_text(MODULE, encoding="utf-8")
    out = tmp_path / "out.hlo"
    done = heddle("fuse", plain, "-o", out)
    assert done.returncode == 0, done.stderr
    assert canonical(out.read_text(encoding="utf-8")) == canonical(MODULE)


def test_xla_reads_every_fused_fixture(root, heddle, tmp_path):
    for path in fixtures(root):
        out = tmp_path / path.name
        done = heddle("fuse", path, "-o", out)
        assert done.returncode == 0, f"{path.name}: {done.stderr}"
        try:
            _hlo.hlo_module_from_text(out.read_text(encoding="utf-8"))
        except Exception as error:  # the parser's failure names line and column
            pytest.fail(f"{path.name}: {error}")


MODULE = """HloModule odds_and_ends

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%below (s: (s32[], f32[4])) -> pred[] {
  %s = (s32[], f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%step (s.1: (s32[], f32[4])) -> (s32[], f32[4]) {
  %s.1 = (s32[], f32[4]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %x = f32[4]{0} get-tuple-element(%s.1), index=1
  %one = s32[] constant(1)
  %j = s32[] add(%i.1, %one)
  ROOT %t = (s32[], f32[4]{0}) tuple(%j, %x)
}

ENTRY %main (p: f32[4,8], q: bf16[8,8]) -> (f32[4,8], f32[4], s32[], f32[6,19]) {
  %p = f32[4,8]{1,0} parameter(0)
  %q = bf16[8,8]{0,1} parameter(1)
  %values = f32[5]{0} constant({1.5, -0.0, inf, -nan(0x12345), 1e-45})
  %small = bf16[3]{0} constant({0.1001, nan, -inf})
  %flags = pred[2,2]{1,0} constant({ { 1, 0 }, { 0, 1 } })
  %zero = f32[] constant(0)
  %d = f32[4,8]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="a/b, {c}"}
  %r = f32[4]{0} reduce(%d, %zero), dimensions={1}, to_apply=%sum
  %w = f32[4,8]{1,0} reduce-window(%p, %zero), window={size=1x8 pad=0_0x7_0}, to_apply=%sum
  %pd = f32[6,19]{1,0} pad(%w, %zero), padding=1_1_0x2_2_1
  %i = s32[] constant(0)
  %s.2 = (s32[], f32[4]{0}) tuple(%i, %r)
  %loop = (s32[], f32[4]{0}) while(%s.2), condition=%below, body=%step
  %count = s32[] get-tuple-element(%loop), index=0
  %call = f32[4]{0} custom-call(%r), custom_call_target="Sharding", sharding={replicated}, control-predecessors={%d, %w}
  ROOT %out = (f32[4,8]{1,0}, f32[4]{0}, s32[], f32[6,19]{1,0}) tuple(%d, %call, %count, %pd)
}
"""
