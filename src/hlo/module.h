// An HLO module: computations, one of them the entry, and what the header of its text says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/status.h"
#include "hlo/computation.h"

namespace heddle::hlo {

/// `entry_computation_layout={...}`, `input_output_alias={...}`, ...: the value verbatim.
struct HeaderAttribute {
  std::string name;
  std::string text;
  friend bool operator==(const HeaderAttribute&, const HeaderAttribute&) = default;
};

/// How the text that was read looked, so that writing gives the same characters again.
struct TextStyle {
  bool percent_names = true;    // "%add.1" rather than "add.1"
  bool signatures = true;       // "%f (x: f32[]) -> f32[] {" rather than "f {"
  bool operand_numbers = true;  // "/*index=5*/" before every fifth operand
  friend bool operator==(const TextStyle&, const TextStyle&) = default;
};

class Module {
 public:
  explicit Module(std::string name) : name_(std::move(name)) {}
  Module(Module&&) = delete;  // computations point back at their module
  ~Module();

  const std::string& name() const { return name_; }
  std::vector<HeaderAttribute>& header() { return header_; }
  const std::vector<HeaderAttribute>& header() const { return header_; }
  /// The verbatim text of header attribute `name`; empty if absent.
  std::string_view header_text(std::string_view name) const;
  /// The tables FileNames, FunctionNames, FileLocations, StackFrames, verbatim.
  const std::string& tables() const { return tables_; }
  void set_tables(std::string text) { tables_ = std::move(text); }
  /// The bytes the module was read from, if it came in protobuf form; shared by its copies.
  const std::shared_ptr<const std::string>& wire() const { return wire_; }
  TextStyle& style() { return style_; }
  const TextStyle& style() const { return style_; }

  Computation* entry() const { return entry_; }
  /// Callees before callers, as read; new ones at the end (see callees_first()).
  std::vector<Computation*> computations() const;
  /// Every computation after those it calls; the stored order where that is one.
  std::vector<Computation*> callees_first() const;
  Computation* find_computation(std::string_view name) const;
  /// The instructions that refer to `computation`.
  std::vector<Instruction*> callers(const Computation* computation) const;
  int instruction_count() const;

  /// An empty computation; `name` is made unique.
  Computation* add_computation(std::string_view name);
  /// A copy with fresh names; computations it calls are shared, not copied.
  Computation* clone(const Computation* computation, std::string_view name = {});
  /// Removes computations that the entry does not reach. Returns how many.
  int remove_dead_computations();
  /// Dead instructions and computations, until nothing changes.
  int remove_dead();
  /// A deep copy with the same names and ids.
  std::unique_ptr<Module> copy() const;

  /// `wish` if free, else `wish.N`. Reserves it.
  std::string unique_name(std::string_view wish);

  /// Checks everything later code relies on: operands and called computations belong here, no
  /// cycles and no recursion, users in step, parameters numbered 0..n-1, a root each, operand
  /// counts, attributes in range, shapes as inference gives them. The sentence names the
  /// instruction.
  Status verify() const;

 private:
  friend class Computation;
  friend class Reader;
  friend class ProtoReader;

  std::string name_;
  std::vector<HeaderAttribute> header_;
  std::string tables_;
  TextStyle style_;
  std::shared_ptr<const std::string> wire_;
  std::vector<std::unique_ptr<Computation>> computations_;
  Computation* entry_ = nullptr;
  int64_t next_id_ = 0;
  std::unordered_set<std::string> names_;              // taken by computations and instructions
  std::unordered_map<std::string, int64_t> suffixes_;  // the last number tried for a wish
};

/// Whether two modules say the same: computations and instructions pairwise in order, with names,
/// shapes with layouts, attributes, literals by their bits, header and tables. If not and
/// `difference` is given, it receives one sentence about the first difference.
bool equal(const Module& a, const Module& b, std::string* difference = nullptr);

}  // namespace heddle::hlo
