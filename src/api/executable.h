// A graph made executable: cut into problems, each planned by one engine, its intermediates and the
// plans' scratch laid out in one workspace.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/port.h"
#include "core/overlap.h"
#include "core/status.h"
#include "engine/engine.h"
#include "engine/marks.h"
#include "graph/graph.h"

namespace heddle::api {

/// Immutable once built: many threads may execute it at once, each with its own workspace.
class Executable {
 public:
  /// Validates the graph, cuts it into problems and has the first of `engines` that can plan them
  /// all do so. If none can, the failure is graph_execution_plan_creation_failed with every
  /// engine's reason.
  static Result<std::shared_ptr<const Executable>> build(
      graph::Graph graph, std::span<const engine::Engine* const> engines);

  /// The same plan at sizes within its own: tensors in `shapes` have the dims given there, every
  /// other input those it was planned with, and every other output what follows. Its workspace is
  /// no larger. Heads, head dims and the like are the plan's: batch and lengths may be less.
  Result<std::shared_ptr<const Executable>> resized(std::span<const Shape> shapes) const;

  /// The validated graph: everything inferred is filled in.
  const graph::Graph& graph() const { return graph_; }
  /// Bytes of workspace that execute needs; any alignment will do. Linear in sequence length.
  int64_t workspace_bytes() const { return workspace_bytes_; }
  /// The tensors to bind, each in ascending uid.
  const std::vector<Port>& inputs() const { return inputs_; }
  const std::vector<Port>& outputs() const { return outputs_; }
  /// The name of the engine that planned it.
  const std::string& engine() const { return engine_; }
  /// For people: a line for each step with the nodes it stands for, the engine and its plan.
  const std::string& description() const { return description_; }
  /// For people: the path that serves each attention's forward, and why: "flash: ...". Of several
  /// one after the other; empty if there is none.
  const std::string& attention_paths() const { return attention_paths_; }

  /// Runs on the buffers in `bindings`; uids the graph does not bind are ignored. Refuses missing
  /// uids, null and misaligned pointers and outputs that share memory with another tensor or the
  /// workspace, before anything is written; but a cache that cache_append makes may have the
  /// address of its past, and a pointwise result that of an input of its layout, if nothing reads
  /// that afterwards. Initial contents of outputs and
  /// workspace never matter. Allocates nothing unless it fails. `stream` is the engine's kind of
  /// queue (ignored by the CPU engine).
  Status execute(std::span<const Binding> bindings, void* workspace, void* stream) const;

  /// The same, with a mark of `stream` before each step, a line each of description(), and one
  /// behind the last: of step_count() + 1 marks from the `first` on.
  Status execute_marked(std::span<const Binding> bindings, void* workspace, void* stream,
                        engine::Marks& marks, size_t first) const;
  size_t step_count() const { return steps_.size(); }

  /// Most tensors a graph may bind, and most operands one problem may have; execute keeps that many
  /// pointers on its stack.
  static constexpr size_t kMaxPorts = 128;
  static constexpr size_t kMaxOperands = 128;

 private:
  /// Where an operand's memory is.
  struct Source {
    enum class Kind : uint8_t { port, workspace, constant };
    Kind kind = Kind::port;
    int64_t index = 0;  ///< of ports_, byte offset in the workspace, or index of constants_
  };
  struct Step {
    engine::Problem problem;
    std::shared_ptr<const engine::Plan> plan;
    std::vector<Source> operands;
    int64_t workspace_offset = 0;
  };
  class Builder;

  /// `marks`: from `first` on, or null.
  Status run(std::span<const Binding> bindings, void* workspace, void* stream, engine::Marks* marks,
             size_t first) const;
  Status find_pointers(std::span<const Binding> bindings, std::span<void*> pointers) const;
  Status check_overlaps(std::span<void* const> pointers, void* workspace) const;
  bool may_be_one(size_t output, size_t input) const;

  graph::Graph graph_;
  std::vector<Port> ports_, inputs_, outputs_;
  std::vector<int64_t> port_bytes_;  ///< from a port's first byte to past its last
  struct InPlace {
    size_t output, input;  ///< ports that may have one address
  };
  std::vector<InPlace> in_place_;
  std::vector<Step> steps_;
  std::vector<int64_t> constants_;  ///< a scalar's bytes each
  int64_t workspace_bytes_ = 0;
  const engine::Engine* planned_by_ = nullptr;
  std::string engine_, description_, attention_paths_;
};

}  // namespace heddle::api
