// From a problem (values) and buffers (pointers) to what the kernels are told. The parts that do
// not depend on the buffers are made once, at plan time; binding copies them into the head of the
// workspace, since the views in there point at one another, and fills in the pointers.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/rounding.h"
#include "core/status.h"
#include "engine/cpu/arguments.h"
#include "engine/cpu/kernel_shape.h"
#include "engine/cpu/views.h"
#include "problem/attention.h"

namespace heddle::engine::cpu {

/// Hands out the workspace in order. With a null base it only measures.
class WorkspaceCursor {
 public:
  explicit WorkspaceCursor(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    T* p = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return p;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

class AttentionBinding {
 public:
  /// `problem` must have passed check(); `derivatives` are d_dot and the load gradients', if any.
  AttentionBinding(const problem::AttentionStructure& structure,
                   const problem::AttentionSizes& sizes,
                   std::vector<problem::ScoreExpression> derivatives = {});

  /// Fails if a buffer is missing or not aligned to its elements. Everything handed out lives in
  /// the workspace. With a measuring cursor nothing is bound.
  struct Result {
    AttentionArguments arguments;
    View* views;         ///< one per operand
    Score* derivatives;  ///< as given
  };
  Status bind(std::span<void* const> buffers, WorkspaceCursor& workspace, Result& result) const;
  void measure(WorkspaceCursor& workspace) const;

 private:
  Status bind_views(std::span<void* const> buffers, View* views) const;

  problem::AttentionStructure structure_;
  problem::AttentionSizes sizes_;
  std::vector<problem::ScoreExpression> expressions_;  ///< the score, then the derivatives
  problem::OperandId boolean_mask_;                    ///< AttentionArguments::boolean_mask
};

/// Fails unless the workspace is there and aligned to a cache line.
Status check_workspace(const void* workspace);

/// Whether it is computed in f64, as Q says; else in f32.
bool is_f64(const problem::AttentionStructure& structure);

/// How products are computed, in a description; nothing of single numbers.
std::string_view words_of(Products products);

/// How products are computed where keys are packed. A forward that leaves statistics and the
/// backward that reads them say the same.
Products packed_products(const problem::AttentionStructure& structure, const KernelShape& shape);

}  // namespace heddle::engine::cpu
