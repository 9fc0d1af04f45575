// One element of one value, at a symbolic place: instruction[i, j, ...] with an index made of
// digits for each dimension. Views (transposes, reshapes, broadcasts, widening converts and those
// back again, tuples, invariant loop state, slices of what is joined of them) only rename the
// place, so resolving them shows what is really read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "hlo/module.h"
#include "rewrite/digits.h"
#include "rewrite/index.h"
#include "rewrite/separable.h"

namespace heddle::rewrite {

/// A computation as it runs: the entry, the body of a loop or a branch of a conditional that stands
/// in another frame, or such a body at the iteration that another loop's body reads back, or such a
/// branch that the same branch of another conditional reads back (`read_by` is then that reader).
struct Frame {
  const hlo::Computation* computation = nullptr;
  int parent = -1;
  const hlo::Instruction* caller =
      nullptr;      // the while or conditional, in the parent's computation
  int branch = -1;  // of the conditional
  int read_by = -1;

  bool is_body() const { return caller && branch < 0; }
};

struct Element {
  int frame = 0;
  const hlo::Instruction* x = nullptr;
  std::vector<Index> at;
  friend bool operator==(const Element&, const Element&) = default;
};

struct DecidedMasks;

/// A value that one frame keeps, and how another, its reader, reads it back: by a stack that a
/// loop's body writes each iteration's value into, or as a result of the conditional.
struct ReadBack {
  const hlo::Instruction* read = nullptr;   // the dynamic-slice or element in the reader
  const hlo::Instruction* kept = nullptr;   // in the frame that keeps it
  const hlo::Instruction* write = nullptr;  // the dynamic-update-slice of it; none in a branch
  int64_t result = -1;                      // of the conditional, whose branch gives it
};

/// All digits of a place, in order.
Index flat(const std::vector<Index>& at);
/// Whether `element` varies along some digit of `along`.
bool varies(const Element& element, const Index& along);

class Elements {
 public:
  explicit Elements(const hlo::Module& module);

  const std::vector<Frame>& frames() const { return frames_; }
  const Callers& callers() const { return callers_; }
  /// The instructions of a frame's computation, operands before users, and where one stands there.
  const std::vector<const hlo::Instruction*>& order(int frame) const;
  size_t position(const hlo::Instruction* x) const { return known_.at(x).position; }
  /// What reads `x`, a representative, or another instruction of its value.
  std::vector<const hlo::Instruction*> users(const hlo::Instruction* x) const;
  /// The frame in which `computation` itself runs; -1 if it runs in none or several.
  int frame_of(const hlo::Computation* computation) const;

  int64_t size(Var var) const { return sizes_[var]; }
  int64_t size(const Index& index) const;
  Var fresh(int64_t size);
  /// Fresh digits for dimension `dim` of `x`.
  Index fresh(const hlo::Instruction* x, int dim);
  Element fresh(int frame, const hlo::Instruction* x);

  /// Which digits of `to` stand where those of `from` do; nothing where the two count a dimension
  /// in other digits.
  std::optional<Renaming> renaming(const std::vector<Index>& from,
                                   const std::vector<Index>& to) const;

  /// The element behind all views.
  Element resolve(Element element);
  /// The digits of `from`, most significant first, dealt out again to dimensions of these sizes;
  /// nothing if a dimension's boundary falls inside a digit.
  std::optional<std::vector<Index>> regroup(const std::vector<Index>& from,
                                            const std::vector<int64_t>& dims) const;

  /// An instruction of `frame`'s own computation that holds the value of `x` of frame `of`, where
  /// resolving one gave the other, or computed_before(); null if none did.
  const hlo::Instruction* local(int frame, int of, const hlo::Instruction* x) const;
  /// The reads through which the reader of `frame` sees its values.
  const std::vector<ReadBack>& reads(int frame) const;

  /// The element of `iteration`, a forward iteration that the frame of `element` reads back, that
  /// it computes again: by equal operations on equal operands, as a checkpoint does with what its
  /// policy does not save. Nothing if it does not, or not in sight.
  std::optional<Element> computed_before(const Element& element, int iteration);

  /// The constant that every element of `x` has, through views and invariant loop state.
  std::optional<double> splat(int frame, const hlo::Instruction* x);

  /// The first of all instructions of a computation that compute the same by the same operation.
  const hlo::Instruction* representative(const hlo::Instruction* x) const;

  /// Kept here, as here is what a whole module is known by, for predicate.h.
  const std::shared_ptr<DecidedMasks> decided_masks;

 private:
  void add_frames(const hlo::Computation* computation, int frame, int depth);
  /// One step of resolve(); whether anything was looked through.
  bool step(Element& element);
  bool step_back(Element& element);
  bool step_state(Element& element);
  bool step_stack(Element& element);
  /// From what a branch is given to what the same branch of another conditional gave.
  bool step_branch(Element& element);
  void note_read(int frame, const ReadBack& read);
  /// Whether two elements are the same number: one, or made by equal operations of the same.
  bool are_same(Element a, Element b, int depth);
  bool step_row(Element& element);
  /// What the forward iteration that `frame` reads back reads where `frame` reads `read`: a row of
  /// an array that neither loop changes, as parameters of layers are.
  std::optional<std::pair<int, const hlo::Instruction*>> forward_row(int frame,
                                                                     const hlo::Instruction* read);
  bool step_slice(Element& element);

  const Callers callers_;
  int resolving_ = 0;  // resolve() within resolve()
  Digits digits_;
  std::vector<Frame> frames_;
  std::vector<int64_t> sizes_{0};
  struct Known {
    const hlo::Instruction* representative = nullptr;
    size_t position = 0;     // in the order
    int64_t operation = -1;  // Numbering::operation_of()
  };
  std::unordered_map<const hlo::Instruction*, Known> known_;
  std::unordered_map<const hlo::Instruction*, std::vector<const hlo::Instruction*>> equals_;
  std::unordered_map<const hlo::Computation*, std::vector<const hlo::Instruction*>> orders_;
  std::map<std::tuple<int, int, const hlo::Instruction*>, const hlo::Instruction*> local_;
  std::map<std::pair<int, const hlo::Instruction*>, int>
      forward_iterations_;  // (reader, writing while)
  /// By reader, and frame and instruction of the conditional that keeps.
  std::map<std::tuple<int, int, const hlo::Instruction*>, int> kept_branches_;
  std::map<int, std::vector<ReadBack>> reads_;
  /// are_same() by frames and instructions.
  std::map<std::tuple<int, const hlo::Instruction*, int, const hlo::Instruction*>, bool> same_;
  /// computed_before() by frame, instruction and iteration; null where there is none.
  std::map<std::tuple<int, const hlo::Instruction*, int>, const hlo::Instruction*> before_;
  /// forward_row() by its arguments, as it was when so many iterations were known.
  std::map<std::pair<int, const hlo::Instruction*>,
           std::pair<size_t, std::optional<std::pair<int, const hlo::Instruction*>>>>
      rows_;
};

/// Whether converting loses nothing: the same type, or a wider floating type.
bool is_widening(hlo::ElementType from, hlo::ElementType to);
/// The floating types of 16 bits and more: attention's own numbers may be rounded from one to
/// another and stay within what the precision allows. 8-bit floats are meant as they are.
bool is_wide_floating(hlo::ElementType type);
/// Whether a convert does no more than that.
bool is_rounding(const hlo::Instruction* convert);
/// Whether `x` is one number of the text, wherever it is spread.
bool is_number(const hlo::Instruction* x, double number);

}  // namespace heddle::rewrite
