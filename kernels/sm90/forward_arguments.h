// What the Hopper forward kernel is given at launch. Plain types: host and device share it.
#pragma once

#include "../attention/dot_units.h"
#include "../attention/parameters.h"
#include "../attention/rope_parameters.h"
#include "../ptx/tensor_map.h"
#include "f16_pairs_arguments.h"
#include "score_tile_arguments.h"

namespace heddle::sm90 {

/// How query tiles are dealt to the persistent blocks. The batch * q_heads heads are cut into
/// groups of `head_group`; a group's tiles run from its longest rows (the last query tile) to
/// its shortest, over its heads.
struct TileOrder {
  int q_tiles;     ///< per head
  int head_group;  ///< heads, at least 1
  int total;       ///< batch * q_heads * q_tiles; with a counter below 2 to kTicketBits
  /// One word of the workspace, of any content, from which blocks draw tiles as they get free.
  /// Null: block b takes tiles b, b + blocks, ...
  unsigned long long* counter;
  /// The counter's value once a launch has taken it over, before a ticket is drawn: a number, above
  /// kTicketBits low bits, that the memory does not hold by chance. A launch leaves 0.
  unsigned long long claim;
};
inline constexpr int kTicketBits = 24;

/// Rank 4, 128-byte swizzle, zero fill, dims (column, row, head, batch) in elements of the tensors'
/// own strides. Boxes are 64 columns wide and high: q and o 64 rows, k and v kTileN rows.
template <bool kThere>
struct ForwardMaps {
  TensorMap q, k, v, o;
};
template <>
struct ForwardMaps<false> {
  static constexpr TensorMap q{}, k{}, v{}, o{};
};

/// With kPlanes = 2: q, k and v are mapped where f16_pairs.cuh put them, o is not mapped.
template <bool kThere>
struct ForwardPairs {
  F16Pairs q_pairs, k_pairs, v_pairs;
};
template <>
struct ForwardPairs<false> {
  static constexpr F16Pairs q_pairs{}, k_pairs{}, v_pairs{};
};

template <bool kThere>
struct QueryRope {
  attention::RopeParameters q_rope;  ///< with Config::kRopeDim
};
template <>
struct QueryRope<false> {
  static constexpr attention::RopeParameters q_rope{};
};

struct ForwardArguments : ForwardMaps<attention::kArgumentLayout.maps>,
                          ScoreTiles<attention::kArgumentLayout.tiled>,
                          ForwardPairs<attention::kArgumentLayout.pairs>,
                          QueryRope<attention::kArgumentLayout.rope> {
  /// With Config::kLengths, but for f32: the maps of each batch entry's sequence, [batch][4] in the
  /// order above, as sequence_maps.cuh makes them; then the four maps above are not read.
  const TensorMap* sequence_maps;
  TileOrder order;
  attention::DotUnits dots;  ///< of 16-bit plain scores
  /// Everything else. Of its tensors' addresses only those of statistics, loads, dropout and (for
  /// sequence maps) q, k, v, o are read.
  attention::ForwardParameters problem;
};

/// Arguments of the kernel that makes sequence maps.
struct SequenceMapArguments {
  TensorMap base[4];  ///< as in ForwardArguments, over the whole tensors
  TensorMap* maps;    ///< [batch][4]
  attention::Tensor tensors[4];
  attention::Lengths q_lengths, kv_lengths;
  int batch, q_length;
  int mapped;  ///< the first so many have maps: 4, or 3 where O is f32 and leaves without one
  int element_bytes;
  bool whole_o;  ///< a dense o is mapped past its sequences: what lies there is written, as zeros
};

}  // namespace heddle::sm90
