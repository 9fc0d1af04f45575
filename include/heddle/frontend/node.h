// A node as the builder keeps it until the graph is made: field names of the text form with their
// values.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "heddle/frontend/error.h"
#include "heddle/frontend/tensor.h"

namespace heddle::frontend::graph {

class Graph;

/// An op inside a score expression.
struct Pointwise_node {
  std::string expression;  ///< "score_mod" or "score_mod_bprop"
  PointwiseMode_t mode = PointwiseMode_t::NOT_SET;
  std::vector<Tensor> inputs;
  Tensor output;
  int32_t axis = 0;
  std::vector<std::pair<std::string, double>> numbers;
};

struct Node {
  std::string op, name;
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::vector<std::pair<std::string, double>> numbers;
  std::vector<std::pair<std::string, int64_t>> integers;
  std::vector<std::string> flags;  ///< those that are true
  std::vector<std::pair<std::string, std::string>> choices;
  std::vector<std::pair<std::string, std::vector<int64_t>>> dims;
  std::vector<Pointwise_node> pointwise;
  error_t failure;  ///< what was wrong with the call that made the node; validate() returns it

  Node& tensor(const char* field, const Tensor& value) {
    if (value) tensors.emplace_back(field, value);
    return *this;
  }
  Node& flag(const char* field, bool value) {
    if (value) flags.emplace_back(field);
    return *this;
  }
  Node& number(const char* field, std::optional<double> value) {
    if (value) numbers.emplace_back(field, *value);
    return *this;
  }
  Node& integer(const char* field, std::optional<int64_t> value) {
    if (value) integers.emplace_back(field, *value);
    return *this;
  }
  Tensor find(const std::string& field) const {
    for (const auto& [name, tensor] : tensors) {
      if (name == field) return tensor;
    }
    return nullptr;
  }
  void fail(error_code_t code, std::string message) {
    if (failure.is_good()) failure = {code, std::move(message)};
  }

  /// Every tensor the node refers to, ragged offsets included.
  template <class Visit>
  void for_each_tensor(Visit&& visit) const {
    const auto with_offset = [&](const Tensor& tensor) {
      if (tensor->get_ragged_offset()) visit(tensor->get_ragged_offset());
      visit(tensor);
    };
    for (const auto& [field, tensor] : tensors) with_offset(tensor);
    for (const Pointwise_node& op : pointwise) {
      for (const Tensor& input : op.inputs) with_offset(input);
      with_offset(op.output);
    }
  }

  /// Adds the node to the C interface's graph, whose tensors are there; one of uid 0 as `zero`.
  error_t add_to(heddle_graph* graph, bool with_name, int64_t zero) const;
};

inline error_t Node::add_to(heddle_graph* graph, bool with_name, int64_t zero) const {
  int32_t node = 0;
  error_t error = detail::check(
      heddle_graph_add_node(graph, op.c_str(), with_name ? name.c_str() : nullptr, &node));
  const auto then = [&](heddle_status status) {
    if (error.is_good()) error = detail::check(status);
  };
  if (error.is_bad()) return error;
  for (const auto& [field, t] : tensors)
    then(heddle_node_set_tensor(graph, node, field.c_str(), t->library_uid(zero)));
  for (const auto& [field, value] : numbers)
    then(heddle_node_set_number(graph, node, field.c_str(), value));
  for (const auto& [field, value] : integers)
    then(heddle_node_set_integer(graph, node, field.c_str(), value));
  for (const std::string& field : flags)
    then(heddle_node_set_flag(graph, node, field.c_str(), true));
  for (const auto& [field, value] : choices) {
    then(heddle_node_set_choice(graph, node, field.c_str(), value.c_str()));
  }
  for (const auto& [field, value] : dims) {
    then(heddle_node_set_dims(graph, node, field.c_str(), value.data(),
                              static_cast<int32_t>(value.size())));
  }
  for (const Pointwise_node& op : pointwise) {
    std::vector<int64_t> inputs;
    for (const Tensor& input : op.inputs) inputs.push_back(input->library_uid(zero));
    then(heddle_node_add_pointwise(graph, node, op.expression.c_str(), detail::name(op.mode),
                                   inputs.data(), static_cast<int32_t>(inputs.size()),
                                   op.output->library_uid(zero), op.axis));
    for (const auto& [field, value] : op.numbers) {
      const std::string path = op.expression + ".ops." + field;
      then(heddle_node_set_number(graph, node, path.c_str(), value));
    }
  }
  return error;
}

}  // namespace heddle::frontend::graph
