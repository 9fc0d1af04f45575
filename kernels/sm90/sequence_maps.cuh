// Tensor maps per batch entry, for actual lengths and for ragged tensors: each covers one sequence
// from its first row to its last and no further. So rows past a sequence's end, whatever they hold,
// reach shared memory as zeros, and stores past it are dropped. One thread makes one map.
#pragma once

#include "../attention/operand.cuh"
#include "../ptx/tma.cuh"
#include "forward_arguments.h"

namespace heddle::sm90 {

HEDDLE_DEVICE void make_sequence_maps(const SequenceMapArguments& args) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (index >= 4 * args.batch) return;
  const int batch = index / 4, which = index % 4;
  if (which >= args.mapped) return;
  const attention::Tensor& tensor = args.tensors[which];
  const bool of_keys = which == 1 || which == 2;
  int rows = attention::length_of(of_keys ? args.kv_lengths : args.q_lengths, batch);
  if (which == 3 && args.whole_o && tensor.offsets == nullptr) rows = args.q_length;
  const i64 start = tensor.offsets != nullptr ? attention::load_integer(tensor.offsets, batch,
                                                                        tensor.offsets_are_64_bit) *
                                                    tensor.multiplier
                                              : batch * tensor.stride[0];
  TensorMap* map = args.maps + index;
  *map = args.base[which];
  ptx::tensor_map_replace_address(map,
                                  static_cast<const u8*>(tensor.data) + start * args.element_bytes);
  // An extent of 0 is no tensor map; a sequence without rows is never asked for.
  ptx::tensor_map_replace_rows(map, static_cast<u32>(rows > 0 ? rows : 1));
  ptx::tensor_map_release();
}

}  // namespace heddle::sm90
