#include "engine/cuda/passed_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/rounding.h"

namespace heddle::engine::cuda {

using attention::BackwardParameters;
using attention::ForwardParameters;
using attention::Room;

Room room_of(const problem::AttentionStructure& structure, size_t loads) {
  using problem::kAbsent;
  const auto paged = [&](problem::OperandId id) {
    return structure.type(id).page_table != kAbsent;
  };
  Room room;
  room.operands = room.output = room.row_gradients = room.key_gradients = true;
  room.bounds = static_cast<int>(structure.bounds.size());
  room.loads = static_cast<int>(loads);
  room.row_sums = structure.max != kAbsent || structure.sum_exp != kAbsent;
  room.dropout = structure.dropout.kind != problem::Dropout::Kind::none;
  room.sparse = structure.block_mask != kAbsent || paged(structure.k) || paged(structure.v);
  return room;
}

std::string room_source(const Room& room) {
  return fmt::format(
      "#define HEDDLE_ROOM {{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}}\n",
      room.bounds, room.loads, room.operands, room.output, room.row_sums, room.dropout, room.sparse,
      room.row_gradients, room.key_gradients, room.load_gradient, room.maps, room.tiled, room.pairs,
      room.rope);
}

/// What is left out of a block.
class PassedBytes::Cuts {
 public:
  /// `last` is the block's last member.
  template <class Block, class Last>
  Cuts(const Block& block, const Last& last)
      : block_(reinterpret_cast<const char*>(&block)), bytes_(place_of(&last + 1)) {}

  template <class T>
  void cut(const T* from, int count = 1) {
    // Else members after it would not be where the kernel's are.
    static_assert(sizeof(T) % 8 == 0);
    const size_t begin = place_of(from);
    if (count > 0) cuts_.push_back({begin, begin + static_cast<size_t>(count) * sizeof(T)});
  }
  template <class T>
  void cut_unless(bool wanted, const T& part) {
    if (!wanted) cut(&part);
  }

  /// `alignment` is the kernel's struct's.
  PassedBytes rest(size_t alignment) {
    std::sort(cuts_.begin(), cuts_.end(),
              [](const Part& a, const Part& b) { return a.begin < b.begin; });
    PassedBytes passed;
    size_t begin = 0;
    const auto keep_to = [&](size_t end) {
      if (end > begin) passed.parts_.at(passed.count_++) = {begin, end};
      passed.size_ += end - begin;
    };
    for (const Part& cut : cuts_) {
      keep_to(cut.begin);
      begin = cut.end;
    }
    keep_to(bytes_);
    passed.size_ = static_cast<size_t>(
        round_up(static_cast<int64_t>(passed.size_), static_cast<int64_t>(alignment)));
    return passed;
  }

  void forward(const ForwardParameters& p, const Room& room) {
    cut_unless(room.operands, static_cast<const attention::Operands<true>&>(p));
    cut_unless(room.output, static_cast<const attention::Output<true>&>(p));
    cut_unless(room.row_sums, static_cast<const attention::RowSums<true>&>(p));
    cut_unless(room.dropout, static_cast<const attention::DropoutParameters<true>&>(p));
    cut_unless(room.sparse, static_cast<const attention::SparseOperands<true>&>(p));
    cut(p.loads + room.loads, attention::kMaxLoads - room.loads);
    if (room.bounds == 0)
      cut(&static_cast<const attention::Bounds<attention::kMaxBounds>&>(p));
    else
      cut(p.bounds + room.bounds, attention::kMaxBounds - room.bounds);
  }
  void backward(const BackwardParameters& p, const Room& room) {
    cut_unless(room.row_gradients, static_cast<const attention::RowGradients<true>&>(p));
    cut_unless(room.key_gradients, static_cast<const attention::KeyGradients<true>&>(p));
    cut_unless(room.load_gradient, static_cast<const attention::LoadGradient<true>&>(p));
    forward(p.forward, room);
  }

 private:
  size_t place_of(const void* member) const {
    return static_cast<size_t>(static_cast<const char*>(member) - block_);
  }

  const char* block_;
  size_t bytes_;
  std::vector<Part> cuts_;
};

namespace {
size_t alignment_of(const Room& room) {
  return room.maps || room.tiled ? alignof(TensorMap) : alignof(ForwardParameters);
}
}  // namespace

PassedBytes PassedBytes::of_forward(const Room& room) {
  const ForwardParameters block{};
  Cuts cuts(block, block);
  cuts.forward(block, room);
  return cuts.rest(alignof(ForwardParameters));
}

PassedBytes PassedBytes::of_backward(const Room& room) {
  const BackwardParameters block{};
  Cuts cuts(block, block.d_sink);
  cuts.backward(block, room);
  return cuts.rest(alignof(BackwardParameters));
}

PassedBytes PassedBytes::of_forward_sm90(const Room& room) {
  const sm90::ForwardArguments block{};
  Cuts cuts(block, block.problem);
  cuts.cut_unless(room.maps, static_cast<const sm90::ForwardMaps<true>&>(block));
  cuts.cut_unless(room.tiled, static_cast<const sm90::ScoreTiles<true>&>(block));
  cuts.cut_unless(room.pairs, static_cast<const sm90::ForwardPairs<true>&>(block));
  cuts.cut_unless(room.rope, static_cast<const sm90::QueryRope<true>&>(block));
  cuts.forward(block.problem, room);
  return cuts.rest(alignment_of(room));
}

PassedBytes PassedBytes::of_backward_sm90(const Room& room) {
  const sm90::BackwardArguments block{};
  Cuts cuts(block, block.problem);
  cuts.cut_unless(room.maps, static_cast<const sm90::BackwardMaps<true>&>(block));
  cuts.cut_unless(room.tiled, static_cast<const sm90::ScoreTiles<true>&>(block));
  cuts.cut_unless(room.pairs, static_cast<const sm90::BackwardPairs<true>&>(block));
  cuts.backward(block.problem, room);
  return cuts.rest(alignment_of(room));
}

void PassedBytes::copy(const void* block, void* passed) const {
  auto* to = static_cast<char*>(passed);
  for (size_t n = 0; n < count_; ++n) {
    const size_t bytes = parts_[n].end - parts_[n].begin;
    std::memcpy(to, static_cast<const char*>(block) + parts_[n].begin, bytes);
    to += bytes;
  }
}

size_t PassedBytes::place_of(size_t offset) const {
  size_t place = 0;
  for (size_t n = 0; n < count_; ++n) {
    const Part& part = parts_[n];
    if (offset < part.end) return place + offset - part.begin;
    place += part.end - part.begin;
  }
  return place;
}

}  // namespace heddle::engine::cuda
