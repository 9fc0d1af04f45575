#include "tools/picture.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include "hlo/opcode.h"
#include "hlo/shape.h"
#include "tools/heddle_call.h"

extern char** environ;

namespace heddle::tools {
namespace {

using hlo::Instruction;
using hlo::Opcode;

constexpr size_t kMostUsers = 8;

/// Instructions that only move data: drawn as a line from what they move to who uses it.
bool is_plumbing(const Instruction& instruction) {
  switch (instruction.opcode()) {
    case Opcode::bitcast:
    case Opcode::broadcast:
    case Opcode::convert:
    case Opcode::copy:
    case Opcode::get_tuple_element:
    case Opcode::opt_barrier:
    case Opcode::reshape:
    case Opcode::transpose:
      return true;
    default:
      return false;
  }
}

/// Constants, tuples and a loop's whole state say nothing worth a box.
bool is_left_out(const Instruction& instruction) {
  return instruction.is(Opcode::constant) || instruction.is(Opcode::iota) ||
         instruction.is(Opcode::tuple) ||
         (instruction.is(Opcode::parameter) && instruction.shape().is_tuple());
}

/// What `instruction` moves: through tuples to the element taken.
const Instruction* source(const Instruction* instruction) {
  while (is_plumbing(*instruction) && instruction->operand_count() > 0) {
    const int64_t index = instruction->tuple_index();
    instruction = instruction->operand(0);
    if (index < 0) continue;
    while (instruction->is(Opcode::opt_barrier)) instruction = instruction->operand(0);
    if (instruction->is(Opcode::tuple) && index < instruction->operand_count())
      instruction = instruction->operand(static_cast<int>(index));
  }
  return instruction;
}

std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

/// One panel: its boxes, each standing for an instruction or for elementwise ones in a row.
class Drawing {
 public:
  Drawing(const Panel& panel, const std::vector<AttentionExtent>& extents) : extents_(extents) {
    const std::vector<Instruction*> order = panel.computation->dependency_order();
    for (const Instruction* instruction : order)
      for (const Instruction* operand : instruction->operands())
        if (!is_plumbing(*instruction)) users_[source(operand)].insert(instruction);
    const Instructions drawn = with_neighbours(panel.part);
    std::copy_if(order.begin(), order.end(), std::back_inserter(order_),
                 [&](const Instruction* x) { return drawn.contains(x); });
    // From the last to the first, an elementwise instruction joins the box of its one user.
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      const Instruction* instruction = *it;
      if (is_plumbing(*instruction) || is_left_out(*instruction)) continue;
      const auto user = joins(*instruction) ? box_.find(*users_[instruction].begin()) : box_.end();
      box_[instruction] = user == box_.end() ? instruction : user->second;
    }
  }

  std::string text(const std::string& prefix) const {
    std::string result;
    std::set<std::pair<const Instruction*, const Instruction*>> edges;
    for (const Instruction* instruction : order_) {
      const auto found = box_.find(instruction);
      if (found == box_.end()) continue;
      if (found->second == instruction && is_connected(*instruction))
        result += box_text(*instruction, prefix);
      for (const Instruction* operand : instruction->operands()) {
        const auto from = box_.find(source(operand));
        if (from != box_.end() && from->second != found->second)
          edges.insert({from->second, found->second});
      }
    }
    std::vector<std::pair<int64_t, int64_t>> by_id;
    for (const auto& [from, to] : edges) by_id.emplace_back(from->id(), to->id());
    std::sort(by_id.begin(), by_id.end());
    for (const auto& [from, to] : by_id)
      result += fmt::format("    {0}{1} -> {0}{2};\n", prefix, from, to);
    return result;
  }

 private:
  Instructions with_neighbours(const Instructions& part) const {
    Instructions all = part;
    for (const Instruction* x : part) {
      if (is_left_out(*x)) continue;
      for (const Instruction* operand : x->operands()) all.insert(source(operand));
      if (is_plumbing(*x)) continue;
      const auto users = users_.find(x);
      // What very many read, a loop's index say, is nobody's in particular.
      if (users != users_.end() && users->second.size() <= kMostUsers)
        all.insert(users->second.begin(), users->second.end());
    }
    // Calls of other layers are not among those that the heading counts.
    std::erase_if(all, [&](const auto* x) { return is_heddle_call(*x) && !part.contains(x); });
    return all;
  }

  bool joins(const Instruction& instruction) const {
    if (!hlo::is_elementwise(instruction.opcode())) return false;
    const auto found = users_.find(&instruction);
    if (found == users_.end() || found->second.size() != 1) return false;
    const Instruction& user = **found->second.begin();
    return hlo::is_elementwise(user.opcode()) && user.shape().is_array() &&
           user.shape().element_count() == instruction.shape().element_count();
  }

  /// Parameters nobody in the drawing uses would float about.
  bool is_connected(const Instruction& instruction) const {
    return !instruction.is(Opcode::parameter) || users_.contains(&instruction);
  }

  bool holds_scores(const hlo::Shape& shape) const {
    return shape.is_array() &&
           std::any_of(extents_.begin(), extents_.end(), [&](const AttentionExtent& extent) {
             const auto& dims = shape.dims();
             const auto q = std::find(dims.begin(), dims.end(), extent.q_len);
             if (q == dims.end()) return false;
             const auto from = extent.q_len == extent.kv_len ? q + 1 : dims.begin();
             return std::find(from, dims.end(), extent.kv_len) != dims.end();
           });
  }

  std::string box_text(const Instruction& last, const std::string& prefix) const {
    std::string label;
    bool scores = holds_scores(last.shape());
    for (const Instruction* instruction : order_) {
      const auto found = box_.find(instruction);
      if (found == box_.end() || found->second != &last) continue;
      if (!label.empty()) label += "\\n";
      label += instruction->opcode_name();
      scores = scores || holds_scores(instruction->shape());
    }
    if (last.is(Opcode::parameter)) label = last.name();
    if (last.is(Opcode::call) && last.to_apply() != nullptr) label += " " + last.to_apply()->name();
    const bool ours = is_heddle_call(last);
    if (last.is(Opcode::custom_call)) label = std::string(last.custom_call_target());
    if (ours) label += is_backward(last) ? "\\nattention backward" : "\\nattention forward";
    if (last.shape().is_array()) label += "\\n" + hlo::to_string_without_layout(last.shape());
    const std::string_view fill = ours                                 ? "#8fd19e"
                                  : scores                             ? "#f4a6a0"
                                  : last.is(Opcode::dot)               ? "#a9c9ef"
                                  : last.is(Opcode::parameter)         ? "#ffffff"
                                  : hlo::is_elementwise(last.opcode()) ? "#eeeeee"
                                                                       : "#f6e3b4";
    // The label holds Graphviz's own "\n"; names and shapes hold nothing that needs escaping.
    return fmt::format("    {}{} [label=\"{}\", fillcolor=\"{}\"{}];\n", prefix, last.id(), label,
                       fill, ours ? ", penwidth=2, fontsize=14" : "");
  }

  const std::vector<AttentionExtent>& extents_;
  std::vector<Instruction*> order_;
  std::unordered_map<const Instruction*, std::set<const Instruction*>> users_;
  std::unordered_map<const Instruction*, const Instruction*> box_;  // the box's last instruction
};

}  // namespace

std::string picture(const std::vector<Panel>& panels, const std::vector<AttentionExtent>& extents) {
  std::string text =
      "digraph heddle {\n"
      "  fontname=\"Helvetica\"; compound=true;\n"
      "  node [shape=box, style=\"filled,rounded\", fontname=\"Helvetica\", fontsize=10];\n"
      "  edge [color=\"#555555\", arrowsize=0.6];\n";
  for (size_t i = 0; i < panels.size(); ++i) {
    text += fmt::format("  subgraph cluster_{} {{\n    label={}; fontsize=18;\n", i,
                        in_quotes(panels[i].heading));
    text += Drawing(panels[i], extents).text(fmt::format("p{}_", i));
    text += "  }\n";
  }
  return text + "}\n";
}

Status write_picture(const std::string& dot_text, const std::string& path) {
  std::string ending = std::filesystem::path(path).extension().string();
  const bool render = ending != ".dot";
  const std::string dot_path = render ? path + ".dot" : path;
  if (render && ending != ".svg" && ending != ".png" && ending != ".pdf")
    return error(Code::invalid_value, "a picture named '{}'; .svg, .png, .pdf and .dot are allowed",
                 path);
  {
    std::ofstream file(dot_path, std::ios::trunc);
    file << dot_text;
    file.close();
    if (!file) return error(Code::io_failed, "{} cannot be written", dot_path);
  }
  if (!render) return Status();

  std::string program = "dot", type = "-T" + ending.substr(1), output = "-o" + path,
              input = dot_path;
  char* arguments[] = {program.data(), type.data(), output.data(), input.data(), nullptr};
  pid_t child = 0;
  int outcome = 0;
  if (posix_spawnp(&child, "dot", nullptr, nullptr, arguments, environ) != 0)
    return error(Code::io_failed,
                 "{} is written, but not {}: there is no program `dot`; install Debian's graphviz",
                 dot_path, path);
  if (waitpid(child, &outcome, 0) != child || outcome != 0)
    return error(Code::io_failed, "{} is written, but `dot` could not make {} of it", dot_path,
                 path);
  std::error_code ignored;
  std::filesystem::remove(dot_path, ignored);
  return Status();
}

}  // namespace heddle::tools
