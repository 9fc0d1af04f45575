// What kernels may be specialised on beside a problem's structure: coarse words on its sizes, all
// of them derived here. Problems of equal structure and facts run by the same kernels, unless sizes
// go beyond what a way counts (engines say so in words); everything else about sizes is an
// argument.
//
// Where a plan's sizes come late, facts are those of the plan's lengths and dims.
#pragma once

#include <vector>

#include "problem/problem.h"

namespace heddle::problem {

struct OperandFacts {
  bool per_row = false, per_column = false;  ///< else one row or column serves all
  /// An element for each query and key, even if there is a single one of either.
  bool has_cells = false;
  bool is_empty = false;
  /// Columns are contiguous, and other dims of more than one have positive strides below 2^40
  /// bytes.
  bool steps_forward = false;
  /// Elements of which every row's begin is a multiple, if the first one's is, and its length: a
  /// power of two, 16 at most.
  int alignment = 1;

  /// Whether every row can start on 16 bytes.
  bool has_aligned_rows(DataType type) const { return alignment * size_of(type) >= 16; }

  friend bool operator==(const OperandFacts&, const OperandFacts&) = default;
};

/// OperandFacts::alignment.
int alignment_of(const OperandType& type, const OperandLayout& layout);

struct AttentionFacts {
  /// Of the tensors, what the score loads and its gradient, operands of bounds and rotated tensors;
  /// the others' say nothing.
  std::vector<OperandFacts> operands;
  const OperandFacts& operand(OperandId id) const { return operands[static_cast<size_t>(id)]; }

  bool positive_scale = false;       ///< the scale is a number known to be positive, and not tiny
  bool groups_queries = false;       ///< query heads share a key head
  bool as_many_value_heads = false;  ///< as key heads
  /// Rows of a head: few, as in decoding, are up to 64.
  bool has_few_rows = false;
  /// Rows of all heads of a group together.
  enum class GroupRows : uint8_t { to_8, to_16, to_32, to_64, more };
  GroupRows group_rows = GroupRows::to_8;
  enum class Keys : uint8_t { to_255, to_512, to_2047, to_8191, more };
  Keys keys = Keys::to_255;
  /// Keys of up to kFewKeys, rounded up to 16: tiles are chosen that fit them. 0: there are more.
  static constexpr int64_t kFewKeys = 320;
  int few_keys = 0;
  bool is_short = false;  ///< neither keys nor rows are more than kFewKeys

  friend bool operator==(const AttentionFacts&, const AttentionFacts&) = default;
};

struct NormFacts {
  int row_dims = 0, column_dims = 0;  ///< that are stepped through one by one (norm_rows.h)
  int vector = 1;                     ///< NormRows::vector
  int64_t vectors = 1;                ///< of a row, rounded up to a power of two
  bool channels_last = false;         ///< rows of x next to each other are closer than columns

  friend bool operator==(const NormFacts&, const NormFacts&) = default;
};

struct RopeFacts {
  bool is_empty = false;
  int alignment = 1;  ///< OperandFacts::alignment of x and y, the lesser

  friend bool operator==(const RopeFacts&, const RopeFacts&) = default;
};

struct CacheAppendFacts {
  bool is_empty = false;  ///< nothing to append and no rows of Q
  int alignment = 1;      ///< OperandFacts::alignment of the tensors, the least
  /// Of the tables to rotate by, the least; 1 where their columns are no neighbours.
  int table_alignment = 1;
  bool has_wide_strides = false;  ///< one has more than 32 bits

  friend bool operator==(const CacheAppendFacts&, const CacheAppendFacts&) = default;
};

/// Of the problem in memory order.
struct PointwiseFacts {
  bool is_empty = false;
  /// Elements an access may take in every operand: 16 bytes of the widest that has columns, or
  /// fewer, down to 1.
  int vector = 1;
  /// How an operand's row is stepped through.
  enum class Columns : uint8_t { one, dense, strided };
  std::vector<Columns> columns;
  /// The dim along which each node that is an index counts.
  std::vector<ScoreOp> indices;

  friend bool operator==(const PointwiseFacts&, const PointwiseFacts&) = default;
};

AttentionFacts facts_of(const AttentionProblem& problem);
AttentionFacts facts_of(const AttentionBackwardProblem& problem);
/// Those of the attention without its scales.
AttentionFacts facts_of(const Fp8AttentionProblem& problem);
AttentionFacts facts_of(const Fp8AttentionBackwardProblem& problem);
NormFacts facts_of(const NormProblem& problem);
NormFacts facts_of(const NormBackwardProblem& problem);
NormFacts facts_of(const ChannelNormProblem& problem);
NormFacts facts_of(const ChannelNormBackwardProblem& problem);
RopeFacts facts_of(const RopeProblem& problem);
CacheAppendFacts facts_of(const CacheAppendProblem& problem);
PointwiseFacts facts_of(const PointwiseProblem& problem);

}  // namespace heddle::problem
