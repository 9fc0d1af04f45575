// New instructions with inferred shapes, appended to the computation of their operands. Each fails
// with a sentence if the operands do not fit; nothing is added then. Results have the row-major
// layout, so that they may be written into modules whose shapes carry layouts.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "hlo/computation.h"

namespace heddle::hlo {

using Dimensions = std::vector<int64_t>;

/// A transpose: result dimension i is operand dimension permutation[i].
Result<Instruction*> make_transpose(Instruction* x, Dimensions permutation,
                                    std::string_view name = {});
Result<Instruction*> make_reshape(Instruction* x, Dimensions dims, std::string_view name = {});
/// Operand dimension i becomes result dimension dimensions[i].
Result<Instruction*> make_broadcast(Instruction* x, Dimensions dims, Dimensions dimensions,
                                    std::string_view name = {});
Result<Instruction*> make_convert(Instruction* x, ElementType type, std::string_view name = {});
Result<Instruction*> make_bitcast_convert(Instruction* x, ElementType type,
                                          std::string_view name = {});
/// Negation, exponential, ...: is_elementwise_unary(opcode).
Result<Instruction*> make_unary(Opcode opcode, Instruction* x, std::string_view name = {});
/// Sum, maximum, ...: is_elementwise_binary(opcode); no implicit broadcast.
Result<Instruction*> make_binary(Opcode opcode, Instruction* a, Instruction* b,
                                 std::string_view name = {});
Result<Instruction*> make_compare(Instruction* a, Instruction* b, std::string_view direction,
                                  std::string_view name = {});
Result<Instruction*> make_select(Instruction* predicate, Instruction* on_true,
                                 Instruction* on_false, std::string_view name = {});
Result<Instruction*> make_slice(Instruction* x, std::vector<SliceDimension> slice,
                                std::string_view name = {});
Result<Instruction*> make_pad(Instruction* x, Instruction* value,
                              std::vector<PaddingDimension> padding, std::string_view name = {});
Result<Instruction*> make_concatenate(std::vector<Instruction*> operands, int64_t dimension,
                                      std::string_view name = {});
Result<Instruction*> make_dynamic_slice(Instruction* x, std::vector<Instruction*> starts,
                                        Dimensions sizes, std::string_view name = {});
Result<Instruction*> make_dynamic_update_slice(Instruction* x, Instruction* update,
                                               std::vector<Instruction*> starts,
                                               std::string_view name = {});

struct DotDimensions {
  Dimensions lhs_batch, lhs_contracting, rhs_batch, rhs_contracting;
};
/// A dot whose result has element type `type`.
Result<Instruction*> make_dot(Instruction* lhs, Instruction* rhs, DotDimensions dims,
                              ElementType type, std::string_view name = {});
/// `x` reduced over `dimensions` by `reducer`, a computation of two scalars.
Result<Instruction*> make_reduce(Instruction* x, Instruction* init, Dimensions dimensions,
                                 Computation* reducer, std::string_view name = {});

/// In `computation`, which for these need not be an operand's.
Result<Instruction*> make_tuple(Computation& computation, std::vector<Instruction*> elements,
                                std::string_view name = {});
Result<Instruction*> make_get_tuple_element(Instruction* tuple, int64_t index,
                                            std::string_view name = {});
Result<Instruction*> make_iota(Computation& computation, Shape shape, int64_t dimension,
                               std::string_view name = {});
Instruction* make_constant(Computation& computation, Literal literal, std::string_view name = {});
/// A scalar constant spread over `dims`.
Result<Instruction*> make_splat(Computation& computation, ElementType type, double value,
                                Dimensions dims, std::string_view name = {});
Result<Instruction*> make_call(Computation& computation, std::vector<Instruction*> operands,
                               Computation* callee, std::string_view name = {});

struct CustomCall {
  std::string target;
  Shape shape;                         // the result; layouts are set to row-major where absent
  std::vector<Shape> operand_layouts;  // operand_layout_constraints; empty: row-major operands
  std::string backend_config;  // raw text of an MLIR dictionary, with its braces; may be empty
  bool typed_ffi = true;       // api_version=API_VERSION_TYPED_FFI, else the original one
  bool has_side_effect = false;
};
Result<Instruction*> make_custom_call(Computation& computation, std::vector<Instruction*> operands,
                                      CustomCall call, std::string_view name = {});

/// "f32 add" and the like: a fresh computation that combines two scalars of `type` with `opcode`.
Computation* make_reducer(Module& module, Opcode opcode, ElementType type);

}  // namespace heddle::hlo
