#include "hlo/source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "hlo/fixtures.h"
#include "hlo/read.h"
#include "hlo/read_proto.h"

namespace heddle::hlo {
namespace {

std::string said(const Source& source) {
  return source.operation + "|" + source.file + "|" + std::to_string(source.line);
}

/// Of the root of a module whose tables and root's metadata are these.
std::string said_of(const std::string& tables, const std::string& metadata) {
  const auto module = read_text("HloModule m\n" + tables +
                                    "\nENTRY e {\n  x = f32[2] parameter(0)\n  ROOT y = f32[2] "
                                    "exponential(x)" +
                                    (metadata.empty() ? "" : ", metadata=" + metadata) + "\n}\n",
                                "m.hlo");
  EXPECT_TRUE(module.is_ok()) << module.status().message();
  return module ? said(source_of(*(*module)->entry()->root())) : "";
}

const char* const kTables = R"(
FileNames
1 "library.py"
2 "model \"b\".py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=2 end_column=25}
2 {file_name_id=2 function_name_id=1 line=12 column=2}

StackFrames
1 {file_location_id=2 parent_frame_id=1}
2 {file_location_id=1 parent_frame_id=1}
3 {file_location_id=9 parent_frame_id=1}
)";

TEST(Source, OfText) {
  EXPECT_EQ(said_of("", R"({op_name="jit(f)/exp" source_file="a b.py" source_line=3})"),
            "jit(f)/exp|a b.py|3");
  EXPECT_EQ(said_of("", R"({op_type="exp" source_file="a.py" source_line=3})"), "|a.py|3");
  EXPECT_EQ(said_of("", ""), "||0");
  EXPECT_EQ(said_of("", "{}"), "||0");
}

TEST(Source, OfAStackFrame) {
  EXPECT_EQ(said_of(kTables, R"({op_name="exp" stack_frame_id=1})"), "exp|model \"b\".py|12");
  EXPECT_EQ(said_of(kTables, "{stack_frame_id=2}"), "|library.py|7");
}

TEST(Source, WhatIsNotThereSaysNothing) {
  EXPECT_EQ(said_of("", "{stack_frame_id=2}"), "||0");
  for (const char* frame : {"0", "3", "4", "-1", "99999999999999999999"})
    EXPECT_EQ(said_of(kTables, std::string("{stack_frame_id=") + frame + "}"), "||0") << frame;
  EXPECT_EQ(said_of("", "{source_line=x source_file=unquoted}"), "||0");
}

/// The same of every instruction in both forms, as XLA wrote them.
TEST(Source, ProtoSaysWhatTextSays) {
  int files = 0, operations = 0;
  for (const auto& entry : std::filesystem::directory_iterator(HEDDLE_TEST_DATA "/hlo/proto")) {
    std::filesystem::path path = entry.path();
    if (path.extension() != ".pb") continue;
    const auto proto = read_proto(file_text(path.string()));
    const auto text = read_file(path.replace_extension(".hlo").string());
    ASSERT_TRUE(proto.is_ok() && text.is_ok()) << path;
    std::map<std::string, std::string> of_text;
    for (const Computation* computation : (*text)->computations())
      for (const Instruction* x : computation->instructions())
        of_text[computation->name() + "/" + x->name()] = said(source_of(*x));
    for (const Computation* computation : (*proto)->computations())
      for (const Instruction* x : computation->instructions()) {
        const Source source = source_of(*x);
        const auto other = of_text.find(computation->name() + "/" + x->name());
        if (other == of_text.end()) continue;
        EXPECT_EQ(said(source), other->second) << path << ' ' << x->name();
        files += source.file.empty() ? 0 : 1;
        operations += source.operation.empty() ? 0 : 1;
      }
  }
  EXPECT_GT(files, 50);
  EXPECT_GT(operations, 100);
}

/// Metadata are not read with the module: bytes that are no message there do no harm.
TEST(Source, OfBytesThatAreNone) {
  const std::string path = HEDDLE_TEST_DATA "/hlo/proto/operations.pb";
  std::string bytes = file_text(path);
  const std::string told = "a.py";
  const size_t at = bytes.find(told);
  ASSERT_NE(at, std::string::npos);
  bytes[at - 1] = '\x7f';  // the length of the file's name: beyond its metadata
  const auto module = read_proto(bytes);
  ASSERT_TRUE(module.is_ok()) << module.status().message();
  for (const Computation* computation : (*module)->computations())
    for (const Instruction* x : computation->instructions())
      EXPECT_EQ(source_of(*x).file, "") << x->name();
}

}  // namespace
}  // namespace heddle::hlo
