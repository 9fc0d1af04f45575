// What no attention kernel takes, in words.
#pragma once

#include <initializer_list>

#include "attention/parameters.h"
#include "core/status.h"
#include "problem/facts.h"
#include "problem/operands.h"

namespace heddle::engine::cuda {

/// Whether q, and with it every operand of a product, is f32.
bool is_f32(const problem::AttentionStructure& structure);

/// Whether a backward is given the maxima and sums of rows in place of log-sum-exps, and a forward
/// writes them.
bool has_max_and_sum(const problem::AttentionStructure& structure);

/// The type of an attention's results, O or dQ, dK and dV: all of them are of q's type, or all f32.
Result<DataType> result_type(const problem::AttentionStructure& structure,
                             std::initializer_list<problem::NamedOperand> results);

Result<DataType> result_type_of_backward(const problem::AttentionBackwardStructure& structure);

/// An operand of one of the allowed types, or a sentence naming its role.
Status check_dtype(const problem::AttentionStructure& structure, problem::OperandId id,
                   const char* role, std::initializer_list<DataType> allowed);

/// Kernels read a sink for each head of queries, in f32, one beside the other.
Status check_sink(const problem::AttentionStructure& structure,
                  const problem::AttentionSizes& sizes);

/// Kernels read lengths and offsets one beside the other.
Status check_lists_of_lengths(const problem::AttentionStructure& structure,
                              const problem::AttentionSizes& sizes);

/// Whether a kernel that counts up to `most` rows of queries, and as many keys, takes the lengths.
Status check_lengths(const problem::AttentionSizes& sizes, int64_t most);
/// Of Hopper's kernels, which find the bounds of a batch entry once.
inline constexpr int64_t kMostRowsSm90 = attention::kFarthestBound - 256;

/// Which limit of all attention kernels a forward problem breaks; of all but the decode kernel, if
/// none of codes are taken.
Status check_attention(const problem::AttentionStructure& structure,
                       const problem::AttentionSizes& sizes, bool takes_codes = false);
/// Of a kernel for heads of up to `most` columns.
Status check_head_dims(const problem::AttentionStructure& structure, const char* kernel,
                       int most = 256);
/// The same of a backward, whose derivatives are code as the score is.
Status check_backward(const problem::AttentionBackwardProblem& problem,
                      const problem::AttentionFacts& facts);

}  // namespace heddle::engine::cuda
