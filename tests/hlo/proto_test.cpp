// The protobuf form against the text form: tests/data/hlo/proto holds modules that XLA wrote in
// both.
#include <gtest/gtest.h>

#include <limits>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <set>

#include "hlo/build.h"
#include "hlo/fixtures.h"
#include "hlo/read.h"
#include "hlo/read_proto.h"
#include "hlo/write.h"

namespace heddle::hlo {
namespace {

std::vector<std::string> proto_paths() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(HEDDLE_TEST_DATA "/hlo/proto"))
    if (entry.path().extension() == ".pb") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string with_extension(std::string path, const char* extension) {
  return std::filesystem::path(path).replace_extension(extension).string();
}

/// What only text says, and what the protobuf reader leaves in the bytes, taken out.
void forget_unread(Module& module) {
  module.set_tables("");
  std::erase_if(module.header(), [](const HeaderAttribute& attribute) {
    return attribute.name != "entry_computation_layout";
  });
  for (Computation* computation : module.computations()) {
    for (Instruction* x : computation->instructions()) {
      for (const char* name : {"metadata", "frontend_attributes", "replica_groups", "distribution"})
        x->erase(name);
      if (x->has("sharding")) x->set("sharding", Verbatim{"{unread}"});
    }
  }
}

std::unique_ptr<Module> from_text(const std::string& path) {
  auto module = read_file(path);
  EXPECT_TRUE(module.is_ok()) << module.status().message();
  forget_unread(**module);
  return std::move(*module);
}

std::unique_ptr<Module> from_proto(const std::string& bytes) {
  auto module = read_proto(bytes);
  EXPECT_TRUE(module.is_ok()) << module.status().message();
  return module ? std::move(*module) : nullptr;
}

class Proto : public testing::TestWithParam<std::string> {};

TEST_P(Proto, ReadsWhatTextSays) {
  const auto text = from_text(with_extension(GetParam(), ".hlo"));
  const auto proto = from_proto(file_text(GetParam()));
  ASSERT_TRUE(proto);
  text->style() = proto->style();
  EXPECT_EQ(text->name(), proto->name());
  EXPECT_EQ(text->header(), proto->header());
  EXPECT_EQ(text->entry()->name(), proto->entry()->name());
  // The two forms list computations in orders of their own.
  EXPECT_EQ(text->computations().size(), proto->computations().size());
  for (const Computation* computation : text->computations()) {
    const Computation* other = proto->find_computation(computation->name());
    ASSERT_TRUE(other) << computation->name();
    EXPECT_EQ(to_string(*computation), to_string(*other));
  }
}

TEST_P(Proto, WritesWhatItRead) {
  const auto first = from_proto(file_text(GetParam()));
  ASSERT_TRUE(first);
  const auto bytes = write_proto(*first);
  ASSERT_TRUE(bytes.is_ok()) << bytes.status().message();
  const auto second = from_proto(*bytes);
  ASSERT_TRUE(second);
  // The edge of the entry takes the declared layouts; the rest is what it was.
  for (Module* module : {first.get(), second.get()}) {
    module->entry()->root()->set_shape(module->entry()->root()->shape().without_layout());
    for (Instruction* parameter : module->entry()->parameters())
      parameter->set_shape(parameter->shape().without_layout());
  }
  std::string difference;
  EXPECT_TRUE(equal(*first, *second, &difference)) << difference;
  // Written once more, nothing moves.
  EXPECT_EQ(*bytes, *write_proto(*from_proto(*bytes)));
}

TEST_P(Proto, EveryTruncationIsRefusedOrRead) {
  const std::string bytes = file_text(GetParam());
  for (size_t length = 0; length < bytes.size(); length += 1 + bytes.size() / 400) {
    const auto module = read_proto(std::string_view(bytes).substr(0, length));
    EXPECT_TRUE(module.is_ok() || !module.status().message().empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Modules, Proto, testing::ValuesIn(proto_paths()),
                         [](const auto& info) { return fixture_name(info.param); });

/// A field no reader knows, at the end of a message.
void append_unknown(std::string& message, const std::string& value) {
  protozero::pbf_writer(message).add_string(4321, value);
}

/// `message` with `edit` applied to each submessage `number`.
template <class Edit>
std::string edited(const std::string& message, uint32_t number, Edit&& edit) {
  std::string out;
  protozero::pbf_reader at(message);
  for (size_t start = 0; at.next(); start = message.size() - at.length()) {
    const bool chosen = at.tag() == number;
    at.skip();
    const std::string field = message.substr(start, message.size() - at.length() - start);
    if (!chosen) {
      out += field;
      continue;
    }
    protozero::pbf_reader again(field);
    again.next();
    std::string part = again.get_string();
    edit(part);
    protozero::pbf_writer(out).add_message(number, part);
  }
  return out;
}

size_t occurrences(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(ProtoFields, UnknownOnesSurviveInEveryMessage) {
  std::string bytes = file_text(HEDDLE_TEST_DATA "/hlo/proto/operations.pb");
  size_t instructions = 0, computations = 0;
  bytes = edited(bytes, 3, [&](std::string& computation) {
    ++computations;
    computation = edited(computation, 2, [&](std::string& instruction) {
      ++instructions;
      instruction = edited(instruction, 3,
                           [](std::string& shape) { append_unknown(shape, "unknown of a shape"); });
      append_unknown(instruction, "unknown of an instruction");
    });
    append_unknown(computation, "unknown of a computation");
  });
  append_unknown(bytes, "unknown of a module");
  const auto module = from_proto(bytes);
  ASSERT_TRUE(module);
  const auto written = write_proto(*module);
  ASSERT_TRUE(written.is_ok()) << written.status().message();
  EXPECT_EQ(1U, occurrences(*written, "unknown of a module"));
  EXPECT_EQ(computations, occurrences(*written, "unknown of a computation"));
  EXPECT_EQ(instructions, occurrences(*written, "unknown of an instruction"));
  EXPECT_EQ(instructions, occurrences(*written, "unknown of a shape"));
}

TEST(ProtoReader, TellsComputationsAndInstructionsOfOneNameApart) {
  std::string bytes =
      edited(file_text(HEDDLE_TEST_DATA "/hlo/proto/operations.pb"), 3, [](std::string& part) {
        part = edited(part, 1, [](std::string& name) { name = "computation"; });
        part = edited(part, 2, [](std::string& instruction) {
          instruction = edited(instruction, 1, [](std::string& name) { name = "instruction"; });
        });
      });
  bytes = edited(bytes, 2, [](std::string& entry) { entry = "computation"; });
  const auto module = from_proto(bytes);
  ASSERT_TRUE(module);
  std::set<std::string> names;
  for (const Computation* computation : module->computations())
    EXPECT_TRUE(names.insert(computation->name()).second) << computation->name();
  const auto written = write_proto(*module);
  ASSERT_TRUE(written.is_ok()) << written.status().message();
  std::string difference;
  EXPECT_TRUE(equal(*module, *from_proto(*written), &difference)) << difference;
}

TEST(ProtoWriter, DeclaredLayoutsAreKeptAtTheEntry) {
  // The root of operations.hlo has a layout of its own.
  const auto module = from_proto(file_text(HEDDLE_TEST_DATA "/hlo/proto/operations.pb"));
  ASSERT_TRUE(module);
  const std::string declared(module->header_text("entry_computation_layout"));
  Shape row_major = module->entry()->root()->shape();
  row_major.set_default_layout();
  module->entry()->root()->set_shape(row_major);
  const auto again = from_proto(*write_proto(*module));
  ASSERT_TRUE(again);
  EXPECT_EQ(declared, again->header_text("entry_computation_layout"));
  EXPECT_TRUE(declared.ends_with("->" + to_string(again->entry()->root()->shape()) + "}"))
      << declared;
}

TEST(ProtoWriter, NewInstructionsOfEveryKindTheRewriterMakes) {
  const auto module = from_proto(file_text(HEDDLE_TEST_DATA "/hlo/proto/operations.pb"));
  ASSERT_TRUE(module);
  Computation* entry = module->entry();
  Instruction* x = entry->parameter(0);  // f32[4,8]
  CustomCall call;
  call.target = "heddle";
  call.shape = Shape::tuple({Shape(ElementType::f32, {8, 4}), Shape(ElementType::u8, {0})});
  call.backend_config = "{graph = \"{}\"}";
  Instruction* transposed = *make_transpose(x, {1, 0});
  Instruction* made = *make_custom_call(*entry, {transposed}, call);
  Instruction* value = *make_get_tuple_element(made, 0);
  Instruction* factor = *make_splat(*entry, ElementType::f32, 0.125, {8, 4});
  Instruction* scaled = *make_binary(Opcode::multiply, value, factor);
  Instruction* back = *make_reshape(scaled, {4, 8});
  Instruction* wide = *make_convert(back, ElementType::f64);
  Instruction* sliced = *make_slice(wide, {{0, 4, 1}, {0, 4, 1}});
  ASSERT_TRUE(make_dot(sliced, wide, {{}, {1}, {}, {0}}, ElementType::f32).is_ok());
  for (Instruction* made_here : entry->instructions())  // which proto, like text, does not keep
    if (made_here->shape().is_scalar()) made_here->set_shape(made_here->shape().without_layout());
  const auto bytes = write_proto(*module);
  ASSERT_TRUE(bytes.is_ok()) << bytes.status().message();
  const auto again = from_proto(*bytes);
  ASSERT_TRUE(again);
  std::string difference;
  EXPECT_TRUE(equal(*module, *again, &difference)) << difference;
}

TEST(ProtoWriter, RefusesAModuleReadFromText) {
  const auto module = from_text(HEDDLE_TEST_DATA "/hlo/proto/operations.hlo");
  const auto bytes = write_proto(*module);
  ASSERT_FALSE(bytes.is_ok());
  EXPECT_NE(std::string::npos, bytes.status().message().find("was not read from protobuf"));
}

const std::string kF32 = "\x10\x0b";  // a shape's element_type

void describe(protozero::pbf_writer& instruction, const std::string& name,
              const std::string& opcode, const std::string& shape, int64_t id) {
  instruction.add_string(1, name);
  instruction.add_string(2, opcode);
  instruction.add_message(3, shape);
  instruction.add_int64(35, id);
}

/// A module of computations that give their parameter, each with its ids; the last is the entry.
std::string module_of(const std::vector<std::pair<int64_t, int64_t>>& computations) {
  std::string bytes;
  protozero::pbf_writer out(bytes);
  out.add_string(1, "m");
  out.add_string(2, "c");
  for (const auto& [id, root_id] : computations) {
    protozero::pbf_writer computation(out, 3);
    computation.add_string(1, "c");
    {
      protozero::pbf_writer parameter(computation, 2);
      describe(parameter, "p", "parameter", kF32, root_id);
    }
    computation.add_int64(5, id);
    computation.add_int64(6, root_id);
  }
  out.add_int64(6, computations.back().first);
  return bytes;
}

// Ids that do not fit into half of an instruction's are given anew.
TEST(ProtoWriter, WritesTheSameAgainWhateverTheIds) {
  constexpr int64_t kHalf = int64_t{1} << 32;
  const std::vector<std::vector<std::pair<int64_t, int64_t>>> modules = {
      {{std::numeric_limits<int64_t>::max(), 1}},
      {{std::numeric_limits<int64_t>::min(), 1}, {-1, 1}},
      {{0, kHalf + 1}, {kHalf, kHalf + 1}},
      {{3, 3 * kHalf}, {kHalf + 3, 4 * kHalf}}};
  for (const auto& ids : modules) {
    const auto module = from_proto(module_of(ids));
    ASSERT_TRUE(module);
    const auto written = write_proto(*module);
    ASSERT_TRUE(written) << written.status().message();
    EXPECT_EQ(*written, *write_proto(*from_proto(*written)));
  }
}

// Whatever a loop of a value of unknown size says of its body and condition.
TEST(ProtoReader, CarriesALoopOfUnknownSize) {
  std::string unknown = kF32;
  protozero::pbf_writer shape(unknown);
  shape.add_int64(3, kUnbounded);
  shape.add_bool(6, true);
  for (const std::vector<int64_t>& called : {std::vector<int64_t>{}, {0}, {0, 1}, {1, 0, 1}}) {
    const std::string bytes =
        edited(module_of({{0, 1}, {1, 1}, {2, 2}}), 3, [&](std::string& computation) {
          if (!computation.ends_with(std::string("\x30\x02"))) return;  // root_id = 2
          computation = edited(computation, 2, [&](std::string& parameter) {
            protozero::pbf_writer out(parameter);
            out.add_message(3, unknown);
            out.add_int64(35, 1);
          });
          protozero::pbf_writer out(computation);
          protozero::pbf_writer loop(out, 2);
          describe(loop, "w", "while", unknown, 2);
          loop.add_int64(36, 1);
          loop.add_packed_int64(38, called.begin(), called.end());
        });
    const auto module = from_proto(bytes);
    ASSERT_TRUE(module);
    const Instruction* loop = module->entry()->root();
    EXPECT_EQ(Opcode::unknown, loop->opcode());
    EXPECT_EQ("while", loop->opcode_name());
    EXPECT_EQ(called.size(), loop->called_computations().size());
    const auto written = write_proto(*module);
    ASSERT_TRUE(written) << written.status().message();
    EXPECT_EQ(*written, *write_proto(*from_proto(*written)));
  }
}

// Text spells every row of a constant, also of one without elements.
TEST(ProtoReader, RefusesConstantsOfVastRowsOfNothing) {
  for (const int64_t rows : {int64_t{2}, int64_t{1} << 40}) {
    std::string shape = kF32;
    protozero::pbf_writer sizes(shape);
    sizes.add_int64(3, rows);
    sizes.add_int64(3, 0);
    const std::string bytes = edited(module_of({{0, 1}}), 3, [&](std::string& computation) {
      protozero::pbf_writer out(computation);
      protozero::pbf_writer constant(out, 2);
      describe(constant, "k", "constant", shape, 2);
      protozero::pbf_writer literal(constant, 8);
      literal.add_message(1, shape);
    });
    const auto module = read_proto(bytes);
    ASSERT_EQ(rows == 2, module.is_ok());
    if (!module.is_ok()) {
      EXPECT_NE(std::string::npos, module.status().message().find("rows without elements"));
    }
  }
}

TEST(ProtoReader, RefusesWhatIsNoModule) {
  for (const std::string& bytes :
       {std::string(), std::string("HloModule x"), std::string(100, '\xff')}) {
    const auto module = read_proto(bytes);
    ASSERT_FALSE(module.is_ok());
    EXPECT_EQ(Code::malformed_input, module.status().code());
    EXPECT_FALSE(module.status().message().empty());
  }
}

}  // namespace
}  // namespace heddle::hlo
