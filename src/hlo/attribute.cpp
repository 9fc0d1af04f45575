#include "hlo/attribute.h"

#include <unordered_map>

namespace heddle::hlo {

AttributeKind attribute_kind(std::string_view name) {
  using Kind = AttributeKind;
  static const auto* const kinds = new std::unordered_map<std::string_view, Kind>{
      {"batch_group_count", Kind::integer},
      {"body", Kind::computation},
      {"branch_computations", Kind::computations},
      {"called_computations", Kind::computations},
      {"calls", Kind::computation},
      {"collapsed_slice_dims", Kind::integers},
      {"condition", Kind::computation},
      {"control-predecessors", Kind::instructions},
      {"custom_call_has_side_effect", Kind::boolean},
      {"custom_call_target", Kind::string},
      {"dimensions", Kind::integers},
      {"dynamic_slice_sizes", Kind::integers},
      {"exponent_bits", Kind::integer},
      {"false_computation", Kind::computation},
      {"feature_group_count", Kind::integer},
      {"index", Kind::integer},
      {"index_vector_dim", Kind::integer},
      {"indices_are_sorted", Kind::boolean},
      {"input_batching_dims", Kind::integers},
      {"inserted_window_dims", Kind::integers},
      {"iota_dimension", Kind::integer},
      {"is_stable", Kind::boolean},
      {"k", Kind::integer},
      {"largest", Kind::boolean},
      {"lhs_batch_dims", Kind::integers},
      {"lhs_contracting_dims", Kind::integers},
      {"mantissa_bits", Kind::integer},
      {"offset_dims", Kind::integers},
      {"operand_batching_dims", Kind::integers},
      {"operand_layout_constraints", Kind::shapes},
      {"padding", Kind::padding},
      {"rhs_batch_dims", Kind::integers},
      {"rhs_contracting_dims", Kind::integers},
      {"scatter", Kind::computation},
      {"scatter_dims_to_operand_dims", Kind::integers},
      {"scatter_indices_batching_dims", Kind::integers},
      {"select", Kind::computation},
      {"slice", Kind::slice},
      {"slice_sizes", Kind::integers},
      {"start_index_map", Kind::integers},
      {"start_indices_batching_dims", Kind::integers},
      {"to_apply", Kind::computation},
      {"true_computation", Kind::computation},
      {"unique_indices", Kind::boolean},
      {"update_window_dims", Kind::integers},
      {"window", Kind::window},
  };
  auto found = kinds->find(name);
  return found == kinds->end() ? Kind::verbatim : found->second;
}

}  // namespace heddle::hlo
