// Attention backward on Hopper of fp8 (e4m3) operands: attention_backward.cuh's block and order of
// work, with S, dP and dQ as products of codes and dV and dK of 16 bits.
//
// The tensor core's sums of fp8 products keep about 14 bits. S, dP and a step's part of dQ are sums
// of 128 terms; dV and dK run over all queries, and a part of each step added in f32 would take 128
// registers that a consumer has not. In 16 bits their sums are f32's, P and dS keep their digits,
// and Q and dO need not be turned; the pass before (fp8_backward_rows.cuh) has widened them.
//
// dQ = dS K takes dS with the keys of a row side by side, which dS^T has below one another:
// transposing stores move 16 bits, so keys r and r + 8 of a warp, which a thread has, travel
// together, and K is turned in that order of keys (fp8_turned_keys.cuh).
#pragma once

#include "../attention/largest.cuh"
#include "../ptx/wgmma_fp8.cuh"
#include "attention_backward.cuh"
#include "fp8_backward_arguments.h"
#include "fp8_rows.cuh"

namespace heddle::sm90 {

template <class Config>
struct AttentionBackwardFp8 : AttentionBackward<Config> {
  using Base = AttentionBackward<Config>;
  using C = typename Base::C;
  using T = typename Base::T;
  using Block = typename Base::Block;
  using Producer = typename Base::Producer;
  using Base::kAt;
  using Base::kDeltaBytes;
  using Base::kDqColumns;
  using Base::kQk;
  using Base::kTileM;
  using Base::kTileN;
  using Base::kVd;
  using typename Base::KTile;
  using typename Base::VTile;
  using QCodes = typename Producer::QCodes;
  using DoCodes = typename Producer::DoCodes;
  using typename Base::TurnedKeys;
  using DsTile = tile::SharedTile<kTileM, kTileN / 2>;  ///< a row per query, in pairs of keys
  static_assert(C::kCodes && kTileN == 128 && kQk == C::kQkDim && kVd == C::kVDim);
  static_assert(Base::kSplitColumns && C::kUnitSlope && !Base::C::kDrops && !C::kAllKeys);

  /// One consumer warp group: 64 keys of the block.
  struct Consumer : Base::Consumer {
    using Sixteen = typename Base::Consumer;
    using Sixteen::args;
    using Sixteen::part;
    using Sixteen::shared;
    using Sixteen::thread;
    using Sixteen::work;

    const float d_p_unit;
    float largest_d_s = 0.0f;

    HEDDLE_DEVICE Consumer(const BackwardArguments& args, const BackwardWork& work, u32 shared)
        : Sixteen(args, work, shared), d_p_unit(fp8().units->d_p) {}

    HEDDLE_DEVICE const Fp8BackwardArguments& fp8() const {
      return static_cast<const Fp8BackwardArguments&>(args);
    }
    HEDDLE_DEVICE u32 d_s_tile(int step) const {
      return shared + kAt.d_s + (step & 1) * DsTile::kBytes;
    }

    /// d = a * b of codes, k over kBytes; a group of its own.
    template <int kN, int kBytes, class A, class B>
    HEDDLE_DEVICE static void issue_codes(float (&d)[kN / 2], const A& a, const B& b) {
      ptx::wgmma_fence();
#pragma unroll
      for (int n = 0; n < kBytes / 32; ++n)
        ptx::WgmmaE4m3<kN>::ss(d, a.slice(n), b.slice(n), n > 0);
      ptx::wgmma_commit();
    }

    HEDDLE_DEVICE void begin_s(int stage) {
      issue_codes<kTileM, kQk>(this->s, tile::KMajor<KTile>(shared + kAt.k, 64 * part),
                               tile::KMajor<QCodes>(shared + kAt.q_codes + stage * QCodes::kBytes));
    }
    HEDDLE_DEVICE void begin_d_p(int stage) {
      issue_codes<kTileM, kVd>(
          this->d_p, tile::KMajor<VTile>(shared + kAt.v, 64 * part),
          tile::KMajor<DoCodes>(shared + kAt.d_o_codes + stage * DoCodes::kBytes));
    }
    HEDDLE_DEVICE void issue_d_q(int step) {
      TurnedKeys::wait(shared);
      ptx::mbarrier_wait(this->d_s_full(step), step >> 1 & 1);
      issue_codes<kDqColumns, kTileN>(
          this->d_q, tile::KMajor<DsTile>(d_s_tile(step)),
          tile::KMajor<typename TurnedKeys::Tile>(shared + kAt.turned_k, kDqColumns * part));
    }

    /// dS = P o (dP - delta), kept as an operand of dK and written for dQ.
    HEDDLE_DEVICE void differentiate(int stage, int step, int) {
      const u32 delta =
          shared + kAt.delta + stage * kDeltaBytes + tile::fragment_column(thread) * 4;
      // A warp's 16 keys are a chunk of each query's row.
      const u32 to = d_s_tile(step) + DsTile::chunk_offset(thread % 32, 4 * part + thread / 32);
      u32 codes[4];
#pragma unroll
      for (int k = 0; k < kTileM / 16; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float row_delta[2], d_s[2][2];  // [key half][query]
          ptx::load_shared(delta + 64 * k + 32 * half, row_delta[0], row_delta[1]);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int i = 2 * half + h;
            float p[2];
            ptx::unpack<T>(this->probability[k][i], p[0], p[1]);
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              d_s[h][e] = p[e] * ptx::fma(this->d_p[8 * k + 2 * i + e], d_p_unit, -row_delta[e]);
              largest_d_s = ptx::max_or_nan(largest_d_s, fabsf(d_s[h][e]));
            }
            this->d_s[k][i] = ptx::pack<T>(d_s[h][0], d_s[h][1]);
          }
          codes[2 * (k % 2) + half] =
              ptx::pack_e4m3(d_s[0][0], d_s[1][0]) | ptx::pack_e4m3(d_s[0][1], d_s[1][1]) << 16;
        }
        if (k % 2 == 1)  // 32 rows further the swizzle is the same
          ptx::store_matrix_x4_transposed(to + k / 2 * 32 * tile::kLineBytes, codes[0], codes[1],
                                          codes[2], codes[3]);
      }
      ptx::fence_proxy_async_shared();
      __syncwarp();
      this->arrive(this->d_s_full(step));
    }

    /// Rows of a gradient, if it is wanted; the bits of its largest magnitude.
    template <int kColumns>
    HEDDLE_DEVICE u32 store_codes(float (&d)[kColumns / 2], float unit, float scale,
                                  const attention::Tensor& out) const {
      u32 largest = 0;
      if (out.data == nullptr) return largest;
      const int written = Block::written_rows(out, args, work);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int key = work.key0 + 64 * part + tile::fragment_row(thread, h);
        const bool exists = key < written;
#pragma unroll
        for (int i = 2 * h; i < kColumns / 2; i += 4) {
#pragma unroll
          for (int j = i; j < i + 2; ++j) {
            d[j] *= unit;
            if (exists) largest = attention::larger(largest, attention::magnitude(d[j]));
          }
        }
        u8* const to = attention::element_pointer<u8>(out, work.batch, work.key_head, key, 0);
        store_fp8_row<kColumns>(to, exists, d, h, scale);
      }
      return largest;
    }

    HEDDLE_DEVICE void store() {
      ptx::pin(this->d_v);
      ptx::pin(this->d_k);
      // All that is read comes at once.
      const Fp8BackwardUnits units = *fp8().units;
      const attention::Raised<3> amax({fp8().amax.d_p, fp8().amax.d_v, fp8().amax.d_k});
      const u32 d_v = store_codes<kVd>(this->d_v, units.d_v, units.scale_d_v, args.problem.d_v);
      const u32 d_k = store_codes<kQk>(this->d_k, units.d_k, units.scale_d_k, args.problem.d_k);
      amax.raise({attention::magnitude(largest_d_s * units.d_s), d_v, d_k});
    }
  };

  /// Launched as AttentionBackward::run, after prepare.
  HEDDLE_DEVICE static void run(const Fp8BackwardArguments& args) {
    Base::template run_with<Consumer>(args);
  }
};

}  // namespace heddle::sm90
