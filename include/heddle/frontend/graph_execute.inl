// Graph's executions: variant packs, other shapes, CUDA graphs. Part of graph.h.
#pragma once

namespace heddle::frontend::graph {

inline error_t Graph::overrides(const std::vector<int64_t>& uids,
                                const std::vector<std::vector<int64_t>>& dims,
                                const std::vector<std::vector<int64_t>>& strides,
                                std::vector<heddle_shape>& shapes) const {
  if (uids.size() != dims.size() || uids.size() != strides.size()) {
    return {error_code_t::INVALID_VALUE, "The overrides have " + std::to_string(uids.size()) +
                                             " uids, " + std::to_string(dims.size()) +
                                             " shapes and " + std::to_string(strides.size()) +
                                             " strides, expected as many of each."};
  }
  for (size_t i = 0; i < uids.size(); ++i) {
    heddle_shape shape = {};
    shape.uid = library_uid(uids[i]);
    shape.rank = detail::copy_dims(dims[i], shape.dims);
    // Strides of another rank are those of the memory that a packed tensor was made of.
    if (dims[i].size() == strides[i].size())
      shape.stride_rank = detail::copy_dims(strides[i], shape.strides);
    shapes.push_back(shape);
  }
  return {};
}

/// Whether a tensor has a larger dim there than it was planned with.
inline bool Graph::is_exceeded_by(const std::vector<heddle_shape>& shapes) const {
  for (const heddle_shape& shape : shapes) {
    heddle_tensor planned;
    if (heddle_plan_tensor(plan_.get(), shape.uid, &planned) != HEDDLE_OK) continue;
    if (planned.rank != shape.rank) continue;
    for (int32_t i = 0; i < shape.rank; ++i) {
      if (shape.dims[i] > planned.dims[i]) return true;
    }
  }
  return false;
}

/// The plan that runs these shapes on the device, the graph's own where it does; `shapes` are left
/// those that the plan has to be told at an execution.
inline error_t Graph::find_plan(heddle_device device, std::vector<heddle_shape>& shapes,
                                Plan& plan) const {
  // A graph that was read has no tensors whose dims could be others: the library says so.
  const bool is_exceeded = parsed_.empty() && is_exceeded_by(shapes);
  if (device_ == device && !is_exceeded) {
    plan = plan_;
    return {};
  }
  std::vector<heddle_shape> planned;
  if (is_exceeded) planned.swap(shapes);
  std::string asked = std::to_string(static_cast<int>(device));
  for (const heddle_shape& shape : planned) {
    asked += ";" + std::to_string(shape.uid);
    for (int32_t i = 0; i < shape.rank; ++i) asked += "," + std::to_string(shape.dims[i]);
    asked += ":";
    for (int32_t i = 0; i < shape.stride_rank; ++i) asked += "," + std::to_string(shape.strides[i]);
  }
  return late_->find_or_make(
      asked,
      [&](Plan& made) {
        Owned graph;
        if (error_t error = make(graph, true, planned); error.is_bad()) return error;
        return plan_on(device, graph.get(), made);
      },
      plan);
}

/// `find` gives the pointer of a uid of the program's, or nothing to leave it out.
template <class Find>
error_t Graph::execute_found(const Handle& handle, Find&& find, std::vector<heddle_shape> shapes,
                             void* workspace) const {
  if (error_t error = handle.check(); error.is_bad()) return error;
  if (error_t error = check_built(); error.is_bad()) return error;
  Plan plan;
  if (error_t error = find_plan(handle.device, shapes, plan); error.is_bad()) return error;
  if (plan != plan_) {
    const auto needed = static_cast<int64_t>(heddle_plan_workspace_bytes(plan.get()));
    const int64_t told = late_->told(get_workspace_size());
    if (needed > told) {
      return {error_code_t::INVALID_VALUE,
              "This execution takes a workspace of " + std::to_string(needed) +
                  " bytes, and get_workspace_size has said " + std::to_string(told) +
                  ", expected to be asked with the handle and the overrides before."};
    }
  }
  constexpr size_t kMost = 128;  // the library refuses plans that bind more
  std::array<int64_t, kMost> uids;
  std::array<void*, kMost> pointers;
  size_t count = 0;
  for (auto list : {heddle_plan_inputs, heddle_plan_outputs}) {
    const int64_t* wanted = nullptr;
    size_t wanted_count = 0;
    if (error_t error = detail::check(list(plan.get(), &wanted, &wanted_count)); error.is_bad())
      return error;
    for (size_t i = 0; i < wanted_count; ++i) {
      if (const std::optional<void*> pointer = find(own_uid(wanted[i]))) {
        uids[count] = wanted[i];
        pointers[count++] = *pointer;
      } else if (own_uid(wanted[i]) == 0) {
        return {error_code_t::INVALID_VARIANT_PACK, "Uid 0 not found in variant pack."};
      }
    }
  }
  return detail::check(heddle_plan_execute(plan.get(), uids.data(), pointers.data(), count,
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
      if (tensor && tensor->has_uid() && tensor->get_uid() == uid)
        return std::optional<void*>(pointer);
    }
    return std::optional<void*>();
  };
  return execute_found(handle, find, {}, workspace);
}

inline error_t Graph::execute(const Handle& handle, const std::unordered_map<int64_t, void*>& pack,
                              void* workspace, const std::vector<int64_t>& override_uids,
                              const std::vector<std::vector<int64_t>>& override_shapes,
                              const std::vector<std::vector<int64_t>>& override_strides) const {
  std::vector<heddle_shape> shapes;
  if (error_t e = overrides(override_uids, override_shapes, override_strides, shapes); e.is_bad())
    return e;
  return execute_found(handle, find_in(pack), std::move(shapes), workspace);
}

inline error_t Graph::execute(const Handle& handle, void* const* sorted, int64_t count,
                              void* workspace) const {
  if (error_t error = check_built(); error.is_bad()) return error;
  std::vector<int64_t> uids;
  for (auto list : {heddle_plan_inputs, heddle_plan_outputs}) {
    const int64_t* bound = nullptr;
    size_t bound_count = 0;
    if (error_t e = detail::check(list(plan_.get(), &bound, &bound_count)); e.is_bad()) return e;
    for (size_t i = 0; i < bound_count; ++i) uids.push_back(own_uid(bound[i]));
  }
  if (count != static_cast<int64_t>(uids.size()) || !sorted) {
    return {error_code_t::INVALID_VARIANT_PACK,
            "The pack has " + std::to_string(sorted ? count : 0) + " pointers, expected " +
                std::to_string(uids.size()) + ", in ascending uid."};
  }
  std::sort(uids.begin(), uids.end());
  const auto find = [&](int64_t uid) {
    const auto at = std::lower_bound(uids.begin(), uids.end(), uid);
    return std::optional<void*>(sorted[at - uids.begin()]);
  };
  return execute_found(handle, find, {}, workspace);
}

inline error_t Graph::execute_plan_at_index(const Handle& handle,
                                            const std::unordered_map<int64_t, void*>& pack,
                                            void* workspace, int64_t index) const {
  if (error_t error = check_index(index); error.is_bad()) return error;
  return execute(handle, pack, workspace);
}

inline error_t Graph::execute_plan_at_index(const Handle& handle,
                                            const std::unordered_map<Tensor, void*>& pack,
                                            void* workspace, int64_t index) const {
  if (error_t error = check_index(index); error.is_bad()) return error;
  return execute(handle, pack, workspace);
}

template <class Pack>
error_t Graph::launch_into(CUgraph_st* cuda_graph, const Handle& handle, const Pack& pack,
                           void* workspace, bool again) const {
  if (error_t error = handle.check(); error.is_bad()) return error;
  if (handle.device != HEDDLE_CUDA) {
    return {error_code_t::INVALID_VALUE,
            "The handle is of the CPU, expected one of a GPU, whose launches a CUDA graph holds."};
  }
  if (!cuda_graph)
    return {error_code_t::INVALID_VALUE, "The CUDA graph is null, expected a CUgraph."};
  const auto queue = [&](void* stream) {
    return execute(Handle(HEDDLE_CUDA, stream), pack, workspace);
  };
  return again ? detail::capture_again(cuda_graph, queue) : detail::capture(cuda_graph, queue);
}

}  // namespace heddle::frontend::graph
