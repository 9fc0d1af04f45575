// Graph's lifecycle: made in the C interface, validated, planned, executed. Part of graph.h.
#pragma once

namespace heddle::frontend::graph {

/// Tensors without a uid get the lowest positive one not in use.
inline void Graph::assign_uids() const {
  std::unordered_set<int64_t> used;
  std::vector<Tensor> unset;
  for (const Node& node : nodes_) {
    node.for_each_tensor([&](const Tensor& tensor) {
      if (tensor->has_uid()) {
        used.insert(tensor->get_uid());
      } else {
        unset.push_back(tensor);
      }
    });
  }
  int64_t next = 1;
  for (const Tensor& tensor : unset) {
    if (tensor->has_uid()) continue;  // met before
    while (used.count(next)) ++next;
    tensor->set_uid(next++);
  }
}

inline error_t Graph::make(Owned& graph, bool with_names) const {
  heddle_graph* made = nullptr;
  if (!parsed_.empty()) {
    const error_t error = detail::check(heddle_graph_parse(parsed_.data(), parsed_.size(), &made));
    graph.reset(made);
    return error;
  }
  for (const Node& node : nodes_) {
    if (node.failure.is_bad())
      return {node.failure.code,
              node.failure.err_msg + " (in " + node.op + " '" + node.name + "')"};
  }
  assign_uids();
  const auto type = [](DataType_t value) { return static_cast<heddle_dtype>(value); };
  error_t error = detail::check(heddle_graph_create(with_names ? name_.c_str() : nullptr, type(io_),
                                                    type(intermediate_), type(compute_), &made));
  graph.reset(made);
  std::unordered_set<const Tensor_attributes*> added;
  for (const Node& node : nodes_) {
    node.for_each_tensor([&](const Tensor& tensor) {
      if (error.is_bad() || !added.insert(tensor.get()).second) return;
      if (tensor->get_reordering_type() != TensorReordering_t::NONE) {
        error = {error_code_t::GRAPH_NOT_SUPPORTED,
                 "The tensor '" + tensor->get_name() + "' has a reordering type, expected NONE."};
        return;
      }
      const heddle_tensor description = tensor->describe(with_names);
      error = detail::check(heddle_graph_add_tensor(made, &description));
    });
  }
  for (const Node& node : nodes_) {
    if (error.is_good()) error = node.add_to(made, with_names);
  }
  return error;
}

inline error_t Graph::validate() {
  Owned graph;
  if (error_t error = make(graph, true); error.is_bad()) return error;
  if (error_t error = detail::check(heddle_graph_validate(graph.get())); error.is_bad())
    return error;
  for (const Node& node : nodes_) {
    node.for_each_tensor([&](const Tensor& tensor) {
      heddle_tensor inferred;
      if (heddle_graph_tensor(graph.get(), tensor->get_uid(), &inferred) == HEDDLE_OK)
        tensor->adopt(inferred);
    });
  }
  return {};
}

inline error_t Graph::create_execution_plans(const std::vector<HeurMode_t>& modes) {
  if (modes.empty()) {
    return {error_code_t::HEURISTIC_QUERY_FAILED,
            "No heuristic mode is given, expected at least one of A, B, FALLBACK and OPENSOURCE."};
  }
  modes_given_ = true;
  return {};
}

inline error_t Graph::check_support() {
  if (!modes_given_) {
    return {error_code_t::HEURISTIC_QUERY_FAILED,
            "No execution plans were asked for, expected create_execution_plans before."};
  }
  Owned graph;
  if (error_t error = make(graph, true); error.is_bad()) return error;
  heddle_plan* made = nullptr;
  if (error_t error = detail::check(heddle_plan_create(graph.get(), handle_.device, &made));
      error.is_bad())
    return error;
  Plan plan(made, heddle_plan_free);
  const auto deselected = [](const std::string& why) {
    return error_t{error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED,
                   "No execution plans support the graph. " + why};
  };
  if (const auto bytes = static_cast<int64_t>(heddle_plan_workspace_bytes(made));
      bytes > workspace_limit_) {
    return deselected("The plan needs " + std::to_string(bytes) +
                      " bytes of workspace, and plans over " + std::to_string(workspace_limit_) +
                      " are deselected.");
  }
  if (deselected_.count(heddle_plan_engine(made))) {
    return deselected(std::string("The engine ") + heddle_plan_engine(made) +
                      " supports it, but is deselected.");
  }
  plan_ = std::move(plan);
  return {};
}

inline error_t Graph::build_plan_at_index(const Handle& handle, int64_t index) {
  if (index == 0) return check_support(handle);
  return {error_code_t::INVALID_VALUE, "There is no plan at index " + std::to_string(index) +
                                           ", expected 0: Heddle makes one plan."};
}

inline error_t Graph::build(const Handle& handle, const std::vector<HeurMode_t>& modes,
                            BuildPlanPolicy_t policy) {
  if (error_t error = build_operation_graph(handle); error.is_bad()) return error;
  if (error_t error = create_execution_plans(modes); error.is_bad()) return error;
  return build_plans(handle, policy);
}

inline error_t Graph::get_workspace_size(int64_t& bytes) const {
  if (!plan_)
    return {error_code_t::INVALID_VALUE, "The graph has no plan yet, expected build_plans before."};
  bytes = get_workspace_size();
  return {};
}

inline error_t Graph::get_plan_name(std::string& name) const {
  if (!plan_)
    return {error_code_t::INVALID_VALUE, "The graph has no plan yet, expected build_plans before."};
  name = heddle_plan_description(plan_.get());
  return {};
}

inline error_t Graph::query_tensor_attributes_of_uid(int64_t uid, Tensor_attributes& out) const {
  const Tensor_attributes* found = nullptr;
  for (const Node& node : nodes_) {
    node.for_each_tensor([&](const Tensor& tensor) {
      if (tensor->get_uid() == uid) found = tensor.get();
    });
  }
  if (!found)
    return {error_code_t::INVALID_VALUE,
            "The graph has no tensor with uid " + std::to_string(uid) + "."};
  out = *found;
  return {};
}

/// `find` gives the pointer of a uid, or nothing to leave it out.
template <class Find>
error_t Graph::execute_found(const Handle& handle, Find&& find,
                             const std::vector<heddle_shape>& shapes, void* workspace) const {
  if (!plan_)
    return {error_code_t::INVALID_VALUE, "The graph has no plan yet, expected build_plans before."};
  constexpr size_t kMost = 128;  // the library refuses plans that bind more
  std::array<int64_t, kMost> uids;
  std::array<void*, kMost> pointers;
  size_t count = 0;
  for (auto list : {heddle_plan_inputs, heddle_plan_outputs}) {
    const int64_t* wanted = nullptr;
    size_t wanted_count = 0;
    if (error_t error = detail::check(list(plan_.get(), &wanted, &wanted_count)); error.is_bad())
      return error;
    for (size_t i = 0; i < wanted_count; ++i) {
      if (const std::optional<void*> pointer = find(wanted[i])) {
        uids[count] = wanted[i];
        pointers[count++] = *pointer;
      }
    }
  }
  return detail::check(heddle_plan_execute(plan_.get(), uids.data(), pointers.data(), count,
                                           shapes.data(), shapes.size(), workspace, handle.stream));
}

inline error_t Graph::execute(const Handle& handle, const std::unordered_map<int64_t, void*>& pack,
                              void* workspace) const {
  return execute_found(handle, find_in(pack), {}, workspace);
}

inline error_t Graph::execute(const Handle& handle, const std::unordered_map<Tensor, void*>& pack,
                              void* workspace) const {
  const auto find = [&](int64_t uid) {
    for (const auto& [tensor, pointer] : pack) {
      if (tensor && tensor->get_uid() == uid) return std::optional<void*>(pointer);
    }
    return std::optional<void*>();
  };
  return execute_found(handle, find, {}, workspace);
}

inline error_t Graph::execute(const Handle& handle, const std::unordered_map<int64_t, void*>& pack,
                              void* workspace, const std::vector<int64_t>& override_uids,
                              const std::vector<std::vector<int64_t>>& override_shapes,
                              const std::vector<std::vector<int64_t>>& override_strides) const {
  if (override_uids.size() != override_shapes.size() ||
      override_uids.size() != override_strides.size()) {
    return {error_code_t::INVALID_VALUE,
            "The overrides have " + std::to_string(override_uids.size()) + " uids, " +
                std::to_string(override_shapes.size()) + " shapes and " +
                std::to_string(override_strides.size()) + " strides, expected as many of each."};
  }
  std::vector<heddle_shape> shapes(override_uids.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    shapes[i].uid = override_uids[i];
    shapes[i].rank = detail::copy_dims(override_shapes[i], shapes[i].dims);
    shapes[i].stride_rank = detail::copy_dims(override_strides[i], shapes[i].strides);
  }
  return execute_found(handle, find_in(pack), shapes, workspace);
}

inline error_t Graph::execute(const Handle& handle, void* const* sorted, int64_t count,
                              void* workspace) const {
  if (!plan_)
    return {error_code_t::INVALID_VALUE, "The graph has no plan yet, expected build_plans before."};
  const int64_t *inputs = nullptr, *outputs = nullptr;
  size_t input_count = 0, output_count = 0;
  if (error_t e = detail::check(heddle_plan_inputs(plan_.get(), &inputs, &input_count)); e.is_bad())
    return e;
  if (error_t e = detail::check(heddle_plan_outputs(plan_.get(), &outputs, &output_count));
      e.is_bad())
    return e;
  if (count != static_cast<int64_t>(input_count + output_count) || !sorted) {
    return {error_code_t::INVALID_VARIANT_PACK,
            "The pack has " + std::to_string(sorted ? count : 0) + " pointers, expected " +
                std::to_string(input_count + output_count) + ", in ascending uid."};
  }
  std::array<int64_t, 128> uids;
  std::merge(inputs, inputs + input_count, outputs, outputs + output_count, uids.begin());
  return detail::check(heddle_plan_execute(plan_.get(), uids.data(), sorted,
                                           input_count + output_count, nullptr, 0, workspace,
                                           handle.stream));
}

inline error_t Graph::execute_plan_at_index(const Handle& handle,
                                            const std::unordered_map<int64_t, void*>& pack,
                                            void* workspace, int64_t index) const {
  if (index == 0) return execute(handle, pack, workspace);
  return {error_code_t::INVALID_VALUE, "There is no plan at index " + std::to_string(index) +
                                           ", expected 0: Heddle makes one plan."};
}

}  // namespace heddle::frontend::graph
