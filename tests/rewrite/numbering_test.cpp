// Which instructions count as one: those of which everything that is known is equal.
#include "rewrite/numbering.h"

#include <gtest/gtest.h>

#include <functional>
#include <protozero/pbf_writer.hpp>
#include <string>

#include "hlo/read_proto.h"
#include "rewrite/programs.h"

namespace heddle::testing {
namespace {

/// Whether %a and %b of the module's entry are numbered as one.
bool are_one(const hlo::Module& module) {
  rewrite::Numbering numbering;
  std::vector<const hlo::Instruction*> first;  // of the entry, which comes last
  for (const hlo::Computation* computation : module.callees_first())
    first = numbering.number(computation);
  const auto of = [&](const char* name) { return first[module.entry()->find(name)->position()]; };
  return of("a") == of("b");
}

bool are_one(const std::string& callees, const std::string& a, const std::string& b) {
  return are_one(*parsed("HloModule m\n" + callees + R"(
ENTRY main {
  x = f32[8,8] parameter(0)
  y = f32[8,8] parameter(1)
  z = f32[] constant(0)
  a = )" + a +
                         "\n  b = " + b + R"(
  ROOT r = (f32[8,8], f32[8,8]) tuple(x, y)
})"));
}

TEST(Numbering, EveryAttributeCounts) {
  const std::string slice = "f32[4,8] slice(x), slice={[0:4], [0:8]}";
  EXPECT_TRUE(are_one("", slice, slice));
  EXPECT_TRUE(are_one("", slice, slice + ", metadata={op_name=\"slice\"}"));
  EXPECT_FALSE(are_one("", slice, "f32[4,8] slice(x), slice={[4:8], [0:8]}"));
  EXPECT_FALSE(are_one("", slice, slice + ", frontend_attributes={place=\"host\"}"));
  EXPECT_FALSE(are_one("", slice, slice + ", what_nobody_knows={1}"));
  EXPECT_FALSE(are_one("", "c64[8,8] fft(x), fft_type=FFT, fft_length={8}",
                       "c64[8,8] fft(x), fft_type=IFFT, fft_length={8}"));
  EXPECT_FALSE(are_one("", "f32[8,8] cholesky(x), lower=true", "f32[8,8] cholesky(x)"));
  const std::string solve = "f32[8,8] triangular-solve(x, y), left_side=true, lower=true, ";
  EXPECT_FALSE(are_one("", solve + "transpose_a=NO_TRANSPOSE", solve + "transpose_a=TRANSPOSE"));
  const std::string pad = "f32[9,9] pad(x, z), padding=";
  EXPECT_TRUE(are_one("", pad + "0_1x0_1", pad + "0_1x0_1"));
  EXPECT_FALSE(are_one("", pad + "0_1x0_1", pad + "0_1x1_0"));
  EXPECT_FALSE(are_one("", "f32[8,8]{1,0} copy(x)", "f32[8,8]{0,1} copy(x)"));
  EXPECT_TRUE(are_one("", "f32[8,8]{1,0} negate(x)", "f32[8,8] negate(x)"));
  EXPECT_FALSE(are_one("", "f32[8,8]{1,0} negate(x)", "f32[8,8]{1,0:T(8,128)} negate(x)"));
  EXPECT_FALSE(are_one("", "f32[8,8] negate(x)", "f32[<=8,8] negate(x)"));
  EXPECT_FALSE(are_one("", "f32[8,8] copy(x)", "bf16[8,8] convert(x)"));
}

std::string reducer(const std::string& name, const std::string& body) {
  return name + " {\n  p = f32[] parameter(0)\n  q = f32[] parameter(1)\n" + body + "\n}\n";
}

std::string sorter(const std::string& name, const std::string& direction) {
  return reducer(name, "  ROOT c = pred[] compare(p, q), direction=" + direction);
}

TEST(Numbering, CalledComputationsCountWhole) {
  const std::string first = "f32[8] reduce(x, z), dimensions={1}, to_apply=first";
  const std::string second = "f32[8] reduce(x, z), dimensions={1}, to_apply=second";
  const auto reduced = [&](const std::string& a, const std::string& b) {
    return are_one(reducer("first", a) + reducer("second", b), first, second);
  };
  const std::string sum = "  ROOT s = f32[] add(p, q)";
  const auto chosen = [](const std::string& compared, const std::string& direction) {
    return "  c = pred[] compare(" + compared + "), direction=" + direction +
           "\n  ROOT s = f32[] select(c, p, q)";
  };
  EXPECT_TRUE(reduced(sum, sum));
  EXPECT_TRUE(reduced(sum, "  unused = f32[] multiply(p, q)\n" + sum));
  EXPECT_TRUE(reduced(chosen("p, q", "GT"), chosen("p, q", "GT")));
  EXPECT_FALSE(reduced(sum, "  ROOT s = f32[] add(p, p)"));
  EXPECT_FALSE(reduced(sum, "  ROOT s = f32[] multiply(p, q)"));
  EXPECT_FALSE(reduced(chosen("p, q", "GT"), chosen("p, q", "LT")));
  EXPECT_FALSE(reduced(chosen("p, q", "GT"), chosen("q, p", "GT")));
  EXPECT_FALSE(reduced("  k = f32[] constant(1)\n  ROOT s = f32[] multiply(p, k)",
                       "  k = f32[] constant(2)\n  ROOT s = f32[] multiply(p, k)"));

  const auto sorted = [&](const std::string& to_apply) {
    return "f32[8,8] sort(x), dimensions={1}, to_apply=" + to_apply;
  };
  EXPECT_TRUE(are_one(sorter("up", "LT") + sorter("up2", "LT"), sorted("up"), sorted("up2")));
  EXPECT_FALSE(are_one(sorter("up", "LT") + sorter("down", "GT"), sorted("up"), sorted("down")));
}

TEST(Numbering, ACallOfWhatHasNoEqualHasNone) {
  const std::string first = "f32[8] reduce(x, z), dimensions={1}, to_apply=first";
  const std::string second = "f32[8] reduce(x, z), dimensions={1}, to_apply=second";
  const std::string drawn = "  ROOT s = f32[] rng(p, q), distribution=rng_uniform";
  EXPECT_FALSE(are_one(reducer("first", drawn) + reducer("second", drawn), first, second));
  EXPECT_FALSE(are_one(reducer("first", drawn), first, first));
}

TEST(Numbering, LiteralsCountWhole) {
  std::string zeros = "f32[64] constant({0", ones = zeros;
  for (int i = 1; i < 64; ++i) {
    zeros += ", 0";
    ones += i == 63 ? ", 1" : ", 0";
  }
  EXPECT_TRUE(are_one("", zeros + "})", zeros + "})"));
  EXPECT_FALSE(are_one("", zeros + "})", ones + "})"));
  EXPECT_FALSE(are_one("", "f32[64] constant({...})", "f32[64] constant({...})"));
}

/// A serialized module of one parameter and two instructions of one opcode on it, each with fields
/// of its own.
using Fields = std::function<void(protozero::pbf_writer&)>;
std::string serialized(const std::string& opcode, const Fields& of_a, const Fields& of_b) {
  const auto shape = [](protozero::pbf_writer& out, uint32_t number) {
    protozero::pbf_writer array(out, number);
    array.add_enum(2, 11);  // f32
    const int64_t dims[] = {8, 8};
    array.add_packed_int64(3, dims, dims + 2);
  };
  std::string bytes;
  protozero::pbf_writer module(bytes);
  module.add_string(1, "m");
  module.add_string(2, "main");
  module.add_int64(6, 1);
  protozero::pbf_writer computation(module, 3);
  computation.add_string(1, "main");
  computation.add_int64(5, 1);
  computation.add_int64(6, 3);
  const auto add = [&](const char* name, const std::string& what, int64_t id, const Fields& own) {
    protozero::pbf_writer x(computation, 2);
    x.add_string(1, name);
    x.add_string(2, what);
    shape(x, 3);
    x.add_int64(35, id);
    if (id > 1) {
      const int64_t operands[] = {1};
      x.add_packed_int64(36, operands, operands + 1);
    }
    own(x);
  };
  add("x", "parameter", 1, [](auto&) {});
  add("a", opcode, 2, of_a);
  add("b", opcode, 3, of_b);
  return bytes;
}

bool are_one_in_protobuf(const std::string& opcode, const Fields& of_a, const Fields& of_b) {
  const auto module = hlo::read_proto(serialized(opcode, of_a, of_b));
  EXPECT_TRUE(module) << module.status().message();
  return module && are_one(**module);
}

TEST(Numbering, FieldsThatAreNotReadCount) {
  const auto fft = [](int type) {
    return [type](protozero::pbf_writer& x) {
      x.add_enum(31, type);
      const int64_t length[] = {8};
      x.add_packed_int64(32, length, length + 1);
    };
  };
  const auto options = [](uint32_t number, bool lower) {
    return [=](protozero::pbf_writer& x) {
      protozero::pbf_writer message(x, number);
      message.add_bool(1, lower);
    };
  };
  const auto text = [](uint32_t number, const char* said) {
    return [=](protozero::pbf_writer& x) {
      protozero::pbf_writer message(x, number);
      message.add_string(1, said);
    };
  };
  EXPECT_TRUE(are_one_in_protobuf("fft", fft(0), fft(0)));
  EXPECT_FALSE(are_one_in_protobuf("fft", fft(0), fft(1)));
  EXPECT_TRUE(are_one_in_protobuf("cholesky", options(62, true), options(62, true)));
  EXPECT_FALSE(are_one_in_protobuf("cholesky", options(62, true), options(62, false)));
  EXPECT_FALSE(are_one_in_protobuf("tanh", text(91, "highest"), text(91, "default")));
  EXPECT_FALSE(are_one_in_protobuf("tanh", text(4000, "new"), [](auto&) {}));
  EXPECT_FALSE(are_one_in_protobuf("tanh", text(68, "host"), [](auto&) {}));
  // Where in the source, and how values are followed.
  EXPECT_TRUE(are_one_in_protobuf("tanh", text(7, "here"), text(7, "there")));
  EXPECT_TRUE(are_one_in_protobuf("tanh", text(88, "here"), text(82, "there")));
  // An empty message of attributes says as much as none.
  EXPECT_TRUE(are_one_in_protobuf(
      "tanh", [](protozero::pbf_writer& x) { x.add_bytes(68, "", 0); }, [](auto&) {}));
}

}  // namespace
}  // namespace heddle::testing
