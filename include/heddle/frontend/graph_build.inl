// Graph's way to a plan: made in the C interface, validated, planned, filtered. Part of graph.h.
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

/// The library has no tensor of uid 0: what it calls the one that the program calls so, and 0 where
/// there is none. All tensors have uids.
inline int64_t Graph::stand_in_for_zero() const {
  if (!parsed_.empty()) return zero_;
  std::unordered_set<int64_t> used;
  for (const Node& node : nodes_)
    node.for_each_tensor([&](const Tensor& tensor) { used.insert(tensor->get_uid()); });
  if (!used.count(0)) return 0;
  int64_t free = 1;
  while (used.count(free)) ++free;
  return free;
}

/// With dims of these shapes, by the library's uids, in the place of the tensors' own; dims of what
/// ops make are then inferred again, in memory laid out as it was.
inline error_t Graph::make(Owned& graph, bool with_names,
                           const std::vector<heddle_shape>& shapes) const {
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
  const int64_t zero = stand_in_for_zero();
  const auto type = [](DataType_t value) { return static_cast<heddle_dtype>(value); };
  error_t error = detail::check(heddle_graph_create(with_names ? name_.c_str() : nullptr, type(io_),
                                                    type(intermediate_), type(compute_), &made));
  graph.reset(made);
  std::unordered_set<int64_t> outputs;
  if (!shapes.empty()) {
    const int64_t* uids = nullptr;
    size_t count = 0;
    error = detail::check(heddle_plan_outputs(plan_.get(), &uids, &count));
    outputs.insert(uids, uids + count);
    for (const Node& node : nodes_) {
      // What is summed over does not follow from the bias.
      const Tensor gradient = node.op == "sdpa_backward" ? node.find("d_bias") : nullptr;
      if (gradient && gradient->get_dim() != node.find("bias")->get_dim())
        outputs.erase(gradient->library_uid(zero));
    }
  }
  std::unordered_set<const Tensor_attributes*> added;
  bool has_zero = false;
  std::unordered_set<std::string> names;  // for sentences; the library's are unlike each other
  for (const Node& node : nodes_) {
    node.for_each_tensor([&](const Tensor& tensor) {
      if (error.is_bad() || !added.insert(tensor.get()).second) return;
      if (error = tensor->check(); error.is_bad()) return;
      if (tensor->get_uid() == 0 && std::exchange(has_zero, true)) {
        error = {error_code_t::INVALID_VALUE, "The uid 0 is given to two tensors."};
        return;
      }
      std::string name = tensor->get_name();
      while (!name.empty() && !names.insert(name).second) name += "'";
      heddle_tensor description = tensor->describe(with_names ? name.c_str() : nullptr, zero);
      if (!shapes.empty() && (outputs.count(description.uid) || description.is_virtual))
        description.rank = 0;
      for (const heddle_shape& shape : shapes) {
        if (shape.uid != description.uid) continue;
        description.rank = shape.rank;
        std::copy(shape.dims, shape.dims + HEDDLE_MAX_RANK, description.dims);
        if (shape.stride_rank == 0) continue;
        description.stride_rank = shape.stride_rank;
        std::copy(shape.strides, shape.strides + HEDDLE_MAX_RANK, description.strides);
      }
      error = detail::check(heddle_graph_add_tensor(made, &description));
    });
  }
  for (const Node& node : nodes_) {
    if (error.is_good()) error = node.add_to(made, with_names, zero);
  }
  return error;
}

inline error_t Graph::validate() {
  Owned graph;
  if (error_t error = make(graph, true); error.is_bad()) return error;
  if (error_t error = detail::check(heddle_graph_validate(graph.get())); error.is_bad())
    return error;
  const int64_t zero = stand_in_for_zero();
  for (const Node& node : nodes_) {
    node.for_each_tensor([&](const Tensor& tensor) {
      heddle_tensor inferred;
      if (heddle_graph_tensor(graph.get(), tensor->library_uid(zero), &inferred) == HEDDLE_OK)
        tensor->adopt(inferred);
    });
  }
  return {};
}

inline error_t Graph::build_operation_graph(const Handle& handle) {
  if (error_t error = handle.check(); error.is_bad()) return error;
  handle_ = handle;
  return validate();
}

inline error_t Graph::plan_on(heddle_device device, const heddle_graph* graph, Plan& plan) const {
  heddle_plan* made = nullptr;
  if (error_t e = detail::check(heddle_plan_create(graph, device, &made)); e.is_bad()) return e;
  plan = Plan(made, heddle_plan_free);
  return {};
}

inline error_t Graph::create_execution_plans(const std::vector<HeurMode_t>& modes) {
  if (modes.empty()) {
    return {error_code_t::HEURISTIC_QUERY_FAILED,
            "No heuristic mode is given, expected at least one of A, B, FALLBACK and OPENSOURCE."};
  }
  modes_given_ = true;
  return find_candidate();
}

inline error_t Graph::check_engine(int64_t engine) {
  if (engine == 0) return {};
  return {error_code_t::INVALID_VALUE, "There is no engine " + std::to_string(engine) +
                                           ", expected 0: Heddle has one for each device."};
}

inline error_t Graph::get_engine_count(int64_t& count) {
  count = 0;
  if (error_t error = validate(); error.is_bad()) return error;
  count = 1;
  return {};
}

inline error_t Graph::get_knobs_for_engine(int64_t engine, std::vector<Knob>& knobs) {
  knobs.clear();
  if (error_t error = check_engine(engine); error.is_bad()) return error;
  return validate();
}

inline error_t Graph::get_engine_and_knobs_at_index(
    int64_t index, int64_t& engine, std::unordered_map<KnobType_t, int64_t>& knobs) const {
  engine = -1;
  knobs.clear();
  if (error_t error = check_index(index); error.is_bad()) return error;
  if (!candidate_) {
    return {error_code_t::INVALID_VALUE,
            "The graph has no plan yet, expected create_execution_plans before."};
  }
  engine = 0;
  return {};
}

inline error_t Graph::create_execution_plan(int64_t engine,
                                            const std::unordered_map<KnobType_t, int64_t>& knobs) {
  if (error_t error = check_engine(engine); error.is_bad()) return error;
  if (!knobs.empty()) {
    return {error_code_t::INVALID_VALUE, "Engine 0 is given " + std::to_string(knobs.size()) +
                                             " knobs, expected none: it has none to turn."};
  }
  return create_execution_plans({HeurMode_t::A});
}

inline error_t Graph::find_candidate() {
  candidate_.reset();
  plan_.reset();
  late_ = std::make_shared<Late_plans>();
  Owned graph;
  if (error_t error = make(graph, true); error.is_bad()) return error;
  zero_ = stand_in_for_zero();
  if (!handle_ && sm_version_ != 0) {
    device_.reset();
    const std::string architecture =
        sm_version_ == 90 ? "sm_90a" : "sm_" + std::to_string(sm_version_);
    heddle_plan* made = nullptr;
    error_t error = detail::check(heddle_plan_create_for(graph.get(), architecture.c_str(), &made));
    candidate_ = Plan(made, heddle_plan_free);
    // A graph that is not valid has been told so: what is invalid is an architecture's name.
    if (error == error_code_t::INVALID_VALUE) error.code = error_code_t::GRAPH_NOT_SUPPORTED;
    return error;
  }
  heddle_device device = HEDDLE_CPU;
  if (handle_) {
    device = handle_->device;
  } else if (error_t e = detail::check(heddle_default_device(&device)); e.is_bad()) {
    return e;
  }
  device_ = device;
  return plan_on(device, graph.get(), candidate_);
}

inline std::vector<BehaviorNote_t> Graph::notes() const {
  if (!candidate_ || std::string(heddle_plan_engine(candidate_.get())) != "cuda") return {};
  return {BehaviorNote_t::RUNTIME_COMPILATION, BehaviorNote_t::SUPPORTS_CUDA_GRAPH_NATIVE_API};
}

/// OK if no filter is against the plan.
inline error_t Graph::filter(const heddle_plan* plan) const {
  const std::string engine = heddle_plan_engine(plan);
  const auto deselected = [](const std::string& why) {
    return error_t{error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED,
                   "No execution plans support the graph. " + why};
  };
  if (const auto bytes = static_cast<int64_t>(heddle_plan_workspace_bytes(plan));
      bytes > workspace_limit_) {
    return deselected("The plan needs " + std::to_string(bytes) +
                      " bytes of workspace, and plans over " + std::to_string(workspace_limit_) +
                      " are deselected.");
  }
  if (deselected_.count(engine))
    return deselected("The engine " + engine + " supports it, but is deselected.");
  const std::vector<BehaviorNote_t> has = notes();
  const auto is_there = [&](BehaviorNote_t note) {
    return std::find(has.begin(), has.end(), note) != has.end();
  };
  for (BehaviorNote_t note : selected_notes_) {
    if (!is_there(note))
      return deselected("The plan of the engine " + engine + " has not the behavior note " +
                        detail::name(note) + ", which is selected.");
  }
  for (BehaviorNote_t note : deselected_notes_) {
    if (is_there(note))
      return deselected("The plan of the engine " + engine + " has the behavior note " +
                        detail::name(note) + ", which is deselected.");
  }
  return filter_by_numerics(engine);
}

/// OK if what is known of the plan is enough to say that no filter is against it.
inline error_t Graph::filter_by_numerics(const std::string& engine) const {
  const auto decline = [](const std::string& why) {
    return error_t{error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED,
                   "No execution plans support the graph. " + why};
  };
  const auto unknown = [&](NumericalNote_t note, const char* what) {
    return decline(std::string("Whether a plan has the numeric note ") + detail::name(note) +
                   " is not known, and it is " + what + ".");
  };
  for (NumericalNote_t note : selected_numerics_) {
    if (detail::is_of_convolutions(note))
      return decline(std::string("No plan has the numeric note ") + detail::name(note) +
                     ", which is selected.");
    return unknown(note, "selected");
  }
  for (NumericalNote_t note : deselected_numerics_)
    if (!detail::is_of_convolutions(note)) return unknown(note, "deselected");
  // No kernel takes more than a block may have, on any GPU that Heddle has kernels for.
  constexpr int64_t kMostSharedMemory = 227 * 1024;
  if (engine == "cuda" && shared_memory_limit_ < kMostSharedMemory)
    return decline("How much shared memory a plan takes is not known, and plans over " +
                   std::to_string(shared_memory_limit_) + " bytes are deselected.");
  return {};
}

inline error_t Graph::check_support() {
  if (!modes_given_) {
    return {error_code_t::HEURISTIC_QUERY_FAILED,
            "No execution plans were asked for, expected create_execution_plans before."};
  }
  if (!candidate_) {
    if (error_t error = find_candidate(); error.is_bad()) return error;
  }
  if (error_t error = filter(candidate_.get()); error.is_bad()) return error;
  plan_ = candidate_;
  return {};
}

inline error_t Graph::check_support(const Handle& handle) {
  if (error_t error = handle.check(); error.is_bad()) return error;
  handle_ = handle;
  if (device_ != handle.device) candidate_.reset();
  return check_support();
}

inline error_t Graph::check_index(int64_t index) {
  if (index == 0) return {};
  return {error_code_t::INVALID_VALUE, "There is no plan at index " + std::to_string(index) +
                                           ", expected 0: Heddle makes one plan."};
}

inline error_t Graph::build_plan_at_index(const Handle& handle, int64_t index) {
  if (error_t error = check_index(index); error.is_bad()) return error;
  return check_support(handle);
}

inline error_t Graph::build_plan_at_index(int64_t index) {
  if (error_t error = check_index(index); error.is_bad()) return error;
  return check_support();
}

inline error_t Graph::build(const Handle& handle, const std::vector<HeurMode_t>& modes,
                            BuildPlanPolicy_t, bool) {
  if (error_t error = build_operation_graph(handle); error.is_bad()) return error;
  return build(modes);
}

inline error_t Graph::build(const std::vector<HeurMode_t>& modes) {
  if (error_t error = validate(); error.is_bad()) return error;
  if (error_t error = create_execution_plans(modes); error.is_bad()) return error;
  return check_support();
}

inline error_t Graph::check_built() const {
  if (plan_) return {};
  return {error_code_t::INVALID_VALUE, "The graph has no plan yet, expected build_plans before."};
}

inline error_t Graph::warmup(const Handle& handle) const {
  if (error_t error = handle.check(); error.is_bad()) return error;
  return check_built();
}

inline error_t Graph::get_workspace_size(int64_t& bytes) const {
  if (error_t error = check_built(); error.is_bad()) return error;
  bytes = get_workspace_size();
  return {};
}

inline error_t Graph::get_workspace_size_plan_at_index(int64_t index, int64_t& bytes) const {
  if (error_t error = check_index(index); error.is_bad()) return error;
  return get_workspace_size(bytes);
}

inline error_t Graph::get_workspace_size(
    const Handle& handle, int64_t& bytes, const std::vector<int64_t>& override_uids,
    const std::vector<std::vector<int64_t>>& override_shapes,
    const std::vector<std::vector<int64_t>>& override_strides) const {
  if (error_t error = handle.check(); error.is_bad()) return error;
  if (error_t error = check_built(); error.is_bad()) return error;
  std::vector<heddle_shape> shapes;
  if (error_t e = overrides(override_uids, override_shapes, override_strides, shapes); e.is_bad())
    return e;
  Plan plan;
  if (error_t error = find_plan(handle.device, shapes, plan); error.is_bad()) return error;
  bytes = static_cast<int64_t>(heddle_plan_workspace_bytes(plan.get()));
  late_->tell(bytes);
  return {};
}

inline error_t Graph::get_plan_name(std::string& name) const {
  if (error_t error = check_built(); error.is_bad()) return error;
  name = heddle_plan_description(plan_.get());
  return {};
}

inline error_t Graph::get_plan_name_at_index(int64_t index, std::string& name) const {
  if (error_t error = check_index(index); error.is_bad()) return error;
  return get_plan_name(name);
}

inline error_t Graph::get_behavior_notes(std::vector<BehaviorNote_t>& found) const {
  if (!candidate_) {
    return {error_code_t::INVALID_VALUE,
            "The graph has no plan yet, expected create_execution_plans before."};
  }
  found = notes();
  return {};
}

inline error_t Graph::get_behavior_notes_for_plan_at_index(
    int64_t index, std::vector<BehaviorNote_t>& found) const {
  if (error_t error = check_index(index); error.is_bad()) return error;
  return get_behavior_notes(found);
}

inline error_t Graph::query_tensor_attributes_of_uid(int64_t uid, Tensor_attributes& out) const {
  const Tensor_attributes* found = nullptr;
  for (const Node& node : nodes_) {
    node.for_each_tensor([&](const Tensor& tensor) {
      if (tensor->has_uid() && tensor->get_uid() == uid) found = tensor.get();
    });
  }
  if (found) {
    out = *found;
    return {};
  }
  // Of a graph that was read the plan knows what is bound.
  heddle_tensor known;
  if (!parsed_.empty() && plan_ && library_uid(uid) != 0 &&
      heddle_plan_tensor(plan_.get(), library_uid(uid), &known) == HEDDLE_OK) {
    out = Tensor_attributes().set_uid(uid).set_name(known.name ? known.name : "");
    out.set_is_virtual(known.is_virtual).set_is_pass_by_value(known.pass_by_value);
    out.adopt(known);
    return {};
  }
  return {error_code_t::INVALID_VALUE,
          "The graph has no tensor with uid " + std::to_string(uid) + "."};
}

}  // namespace heddle::frontend::graph
