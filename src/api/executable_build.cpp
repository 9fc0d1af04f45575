#include <algorithm>
#include <unordered_map>

#include "api/executable.h"
#include "api/shapes.h"
#include "fusion/schedule.h"
#include "graph/names.h"
#include "graph/ports.h"
#include "graph/validate.h"
#include "problem/late_sizes.h"

namespace heddle::api {
namespace {

constexpr int64_t kAlignment = 256;

Result<int64_t> add_bytes(int64_t offset, int64_t bytes) {
  int64_t end, rounded;
  if (bytes < 0 || __builtin_add_overflow(offset, bytes, &end) ||
      __builtin_add_overflow(end, kAlignment - 1, &rounded)) {
    return error(Code::out_of_memory, "The graph's workspace is larger than 63 bits address.");
  }
  return rounded / kAlignment * kAlignment;
}

std::string join(const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : " + ") + name;
  return joined;
}

}  // namespace

/// The parts of building, one after the other.
class Executable::Builder {
 public:
  explicit Builder(Executable& out) : out_(out) {}

  Status find_ports() {
    const graph::Graph& graph = out_.graph_;
    for (graph::TensorId id : bound_inputs(graph))
      out_.inputs_.push_back({graph[id].uid, id, false});
    for (graph::TensorId id : bound_outputs(graph))
      out_.outputs_.push_back({graph[id].uid, id, true});
    out_.ports_ = out_.inputs_;
    out_.ports_.insert(out_.ports_.end(), out_.outputs_.begin(), out_.outputs_.end());
    if (out_.ports_.size() > kMaxPorts) {
      return error(Code::graph_not_supported, "The graph binds {} tensors, expected at most {}.",
                   out_.ports_.size(), kMaxPorts);
    }
    for (size_t i = 0; i < out_.ports_.size(); ++i) {
      const graph::TensorId id = out_.ports_[i].tensor;
      sources_[id] = {Source::Kind::port, static_cast<int64_t>(i)};
      out_.port_bytes_.push_back(*span_of(graph[id].dims, graph[id].strides) *
                                 size_of(*graph[id].dtype));
    }
    return {};
  }

  /// Outputs that may lie where an input does. What reads it later is a matter of steps: a node may
  /// run with one behind it, as a rope with its attention.
  void find_in_place(const fusion::Schedule& schedule) {
    const std::vector<fusion::Step>& steps = schedule.steps;
    const auto names = [](graph::TensorId id) {
      return [id](const fusion::Step& step) {
        return std::ranges::find(step.tensors, id) != step.tensors.end();
      };
    };
    for (const graph::Node& node : out_.graph_.nodes)
      for (const auto& [before, after] : updates(node)) {
        const auto maker = std::find_if(steps.begin(), steps.end(), names(after));
        if (maker != steps.end() && std::none_of(maker + 1, steps.end(), names(before)))
          allow_in_place(before, after);
      }
    for (auto step = steps.begin(); step != steps.end(); ++step) {
      const auto* pointwise = std::get_if<problem::PointwiseProblem>(&step->problem);
      if (!pointwise) continue;
      for (const problem::PointwiseStructure::Result& result : pointwise->structure.results)
        for (const graph::TensorId input : step->tensors)
          if (std::none_of(step + 1, steps.end(), names(input)))
            allow_in_place(input, step->tensors[static_cast<size_t>(result.y)]);
    }
  }

  /// Gives every operand of every step its memory; intermediates come first in the workspace.
  Status place(const fusion::Schedule& schedule) {
    for (const fusion::Step& from : schedule.steps) {
      if (from.tensors.size() > kMaxOperands) {
        return error(Code::graph_not_supported, "{} takes {} operands, expected at most {}.",
                     join(from.nodes), from.tensors.size(), kMaxOperands);
      }
      Step& step = out_.steps_.emplace_back();
      step.problem = from.problem;
      for (graph::TensorId id : from.tensors) {
        HEDDLE_ASSIGN(const Source source, source_of(id));
        step.operands.push_back(source);
      }
    }
    return {};
  }

  /// The first engine that can plan every step does.
  Status plan(const fusion::Schedule& schedule, std::span<const engine::Engine* const> engines) {
    std::string reasons;
    for (const engine::Engine* engine : engines) {
      const Status refusal = plan_with(*engine, schedule);
      if (refusal.is_ok()) return {};
      const std::string name = fmt::format("{}: ", engine->name());
      reasons +=
          fmt::format(" {}{}", refusal.message().starts_with(name) ? "" : name, refusal.message());
    }
    if (engines.empty()) reasons = " There is no engine for this device.";
    return error(Code::graph_execution_plan_creation_failed,
                 "No execution plans support the graph.{}", reasons);
  }

  /// Every step has the plan of the same step of `planned`, at its own sizes. There are as many of
  /// them, of the same kinds: how a graph is cut does not depend on late sizes.
  Status resize(const Executable& planned) {
    for (size_t i = 0; i < out_.steps_.size(); ++i) {
      const Step& from = planned.steps_[i];
      Step& step = out_.steps_[i];
      HEDDLE_ASSIGN(step.problem, at_late_sizes(from.problem, std::move(step.problem)));
      HEDDLE_ASSIGN(step.plan, planned.planned_by_->resized(*from.plan, step.problem));
    }
    HEDDLE_TRY(lay_out_workspace());
    if (out_.workspace_bytes_ <= planned.workspace_bytes_) return {};
    return error(Code::invalid_value,
                 "The shapes need {} bytes of workspace, expected at most the {} of the plan.",
                 out_.workspace_bytes_, planned.workspace_bytes_);
  }

 private:
  /// What a node reads and makes anew, each element of its own place.
  static std::vector<std::pair<graph::TensorId, graph::TensorId>> updates(const graph::Node& node) {
    if (const auto* op = std::get_if<graph::CacheAppend>(&node.op))
      return {{op->past_k, op->present_k}, {op->past_v, op->present_v}};
    if (const auto* op = std::get_if<graph::BatchNorm>(&node.op))
      return {{op->running_mean, op->next_mean}, {op->running_var, op->next_var}};
    return {};
  }

  /// If they are an input and an output of one layout.
  void allow_in_place(graph::TensorId from, graph::TensorId to) {
    const auto port_of = [&](graph::TensorId id) {
      return std::find_if(out_.ports_.begin(), out_.ports_.end(),
                          [&](const Port& port) { return port.tensor == id; });
    };
    const auto input = port_of(from), output = port_of(to);
    if (input == out_.ports_.end() || output == out_.ports_.end() || input->output) return;
    const graph::Tensor &is = out_.graph_[from], &becomes = out_.graph_[to];
    if (size_of(*is.dtype) != size_of(*becomes.dtype) || is.dims != becomes.dims ||
        is.strides != becomes.strides)
      return;
    out_.in_place_.push_back({static_cast<size_t>(output - out_.ports_.begin()),
                              static_cast<size_t>(input - out_.ports_.begin())});
  }

  Result<Source> source_of(graph::TensorId id) {
    const auto found = sources_.find(id);
    if (found != sources_.end()) return found->second;
    const graph::Tensor& tensor = out_.graph_[id];
    Source source;
    if (tensor.constant) {
      source = {Source::Kind::constant, static_cast<int64_t>(out_.constants_.size())};
      store(*tensor.dtype, &out_.constants_.emplace_back(0), 0, *tensor.constant);
    } else {
      source = {Source::Kind::workspace, intermediates_end_};
      HEDDLE_ASSIGN(intermediates_end_,
                    add_bytes(intermediates_end_,
                              *span_of(tensor.dims, tensor.strides) * size_of(*tensor.dtype)));
    }
    return sources_[id] = source;
  }

  Status plan_with(const engine::Engine& engine, const fusion::Schedule& schedule) {
    std::vector<const engine::Problem*> problems;
    for (const Step& step : out_.steps_) problems.push_back(&step.problem);
    HEDDLE_TRY(engine.prepare(problems));
    std::string description, paths;
    for (size_t i = 0; i < out_.steps_.size(); ++i) {
      Step& step = out_.steps_[i];
      HEDDLE_ASSIGN(step.plan, engine.plan(step.problem));
      description += fmt::format("{}: {}, {}\n", join(schedule.steps[i].nodes), engine.name(),
                                 step.plan->description());
      if (const problem::ChosenPath* path = step.plan->attention_path())
        paths += fmt::format("{}{}: {}", paths.empty() ? "" : "; ", name(path->path), path->reason);
    }
    HEDDLE_TRY(lay_out_workspace());
    out_.planned_by_ = &engine;
    out_.engine_ = engine.name();
    out_.description_ = std::move(description);
    out_.attention_paths_ = std::move(paths);
    return {};
  }

  /// Steps run one after the other, so their plans share one scratch, after the intermediates.
  Status lay_out_workspace() {
    int64_t scratch = 0;
    for (Step& step : out_.steps_) {
      scratch = std::max(scratch, step.plan->workspace_bytes());
      step.workspace_offset = intermediates_end_;
    }
    HEDDLE_ASSIGN(const int64_t end, add_bytes(intermediates_end_, scratch));
    // One more unit lets the caller's workspace begin anywhere.
    out_.workspace_bytes_ = end == 0 ? 0 : end + kAlignment;
    return {};
  }

  Executable& out_;
  std::unordered_map<graph::TensorId, Source> sources_;
  int64_t intermediates_end_ = 0;
};

Result<std::shared_ptr<const Executable>> Executable::build(
    graph::Graph graph, std::span<const engine::Engine* const> engines) {
  HEDDLE_TRY(validate(graph));
  HEDDLE_ASSIGN(const fusion::Schedule schedule, fusion::fuse(graph));
  auto executable = std::make_shared<Executable>();
  executable->graph_ = std::move(graph);
  Builder builder(*executable);
  HEDDLE_TRY(builder.find_ports());
  builder.find_in_place(schedule);
  HEDDLE_TRY(builder.place(schedule));
  HEDDLE_TRY(builder.plan(schedule, engines));
  return std::shared_ptr<const Executable>(std::move(executable));
}

Result<std::shared_ptr<const Executable>> Executable::resized(std::span<const Shape> shapes) const {
  HEDDLE_ASSIGN(graph::Graph graph, with_shapes(graph_, ports_, shapes));
  HEDDLE_ASSIGN(const fusion::Schedule schedule, fusion::fuse(graph, graph_));
  auto executable = std::make_shared<Executable>();
  executable->graph_ = std::move(graph);
  Builder builder(*executable);
  HEDDLE_TRY(builder.find_ports());
  builder.find_in_place(schedule);
  HEDDLE_TRY(builder.place(schedule));
  HEDDLE_TRY(builder.resize(*this));
  return std::shared_ptr<const Executable>(std::move(executable));
}

}  // namespace heddle::api
