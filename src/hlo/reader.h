// The recursive-descent reader behind read_text(). Its grammar is spread over read*.cpp by topic.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hlo/cursor.h"
#include "hlo/module.h"

namespace heddle::hlo {

class Reader {
 public:
  Reader(std::string_view text, std::string_view file) : in_(text, file) {}

  Result<std::unique_ptr<Module>> read_module();
  Result<Shape> read_whole_shape();

 private:
  // What the parentheses after an opcode hold.
  struct Arguments {
    std::vector<Instruction*> operands;
    std::optional<Literal> literal;
    int64_t parameter_number = -1;
  };
  struct Signature {
    std::vector<Shape> parameters;
    std::optional<Shape> result;
    size_t offset = 0;
  };

  // read.cpp: the module's frame and computations
  Status read_header();
  Status read_tables();
  Status read_computation();
  Result<Signature> read_signature();
  Status read_instruction();
  Status finish_computation(const Signature& signature, Instruction* root, size_t at);

  // read_instruction.cpp
  Result<Instruction*> read_instruction_body(std::string_view name, size_t at, int depth);
  Result<Arguments> read_arguments(Opcode opcode, const std::optional<Shape>& shape, size_t at,
                                   int depth);
  Result<Instruction*> read_operand(int depth);
  Result<Instruction*> find_instruction(std::string_view name, size_t at);
  Result<Computation*> read_computation_name();

  // read_shape.cpp
  bool shape_comes_next();
  Result<Shape> read_shape(int depth);
  Result<Shape> read_array_shape();
  Result<Layout> read_layout(int rank);

  // read_literal.cpp
  Result<Literal> read_literal(const Shape& shape, int depth);
  Status read_elements(const Shape& shape, int dimension, Literal& literal, int64_t& next);
  Status read_element(Literal& literal, int64_t index);

  // read_attribute.cpp
  Status read_attributes(bool known_opcode, std::vector<Attribute>& attributes);
  Result<AttributeValue> read_attribute_value(AttributeKind kind);
  Result<std::vector<int64_t>> read_integers();
  Result<std::vector<int64_t>> read_separated(char separator);
  Result<AttributeValue> read_slice();
  Result<AttributeValue> read_padding();
  Result<AttributeValue> read_window();

  Cursor in_;
  std::unique_ptr<Module> module_;
  std::unordered_map<std::string_view, Computation*> computations_;  // names lie in the text

  // The computation being read.
  Computation* current_ = nullptr;
  std::unordered_map<std::string_view, Instruction*> instructions_;
  std::unordered_map<int64_t, Instruction*> parameters_;
  Instruction* root_ = nullptr;

  std::vector<Instruction*> anonymous_;  // named once every name in the text is known
  int64_t inferred_parts_ = 0;
  std::optional<bool> operand_numbers_;  // whether a list of more than five operands had them
};

}  // namespace heddle::hlo
