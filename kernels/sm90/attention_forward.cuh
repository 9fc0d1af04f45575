// Attention forward on Hopper.
//
//   O = softmax(score(scale * Q K^T)) V,  log-sum-exp = log(sum(exp(score)))
//
// A persistent block is one producer warp group, in which one thread deals out query tiles and
// another feeds rings of K and V tiles by TMA, and one to three consumer warp groups of 64 query
// rows each, or two that share rows whose O is wider than one's registers: both compute S (in f32
// each over some columns: shared_dots.cuh), and each some columns of O; one more rotates Q, where
// RoPE is staged for two. Blocks of one consumer share a processor, for short sequences. A consumer
// keeps two products in flight: while the tensor core adds P(j) V(j), it computes the softmax of
// S(j+1). Consumers take turns at issuing, so one's softmax runs under the other's products. Keys
// are visited from the last visible tile backwards or, with kUpwards, from the first one on; steps
// of tiles that every row sees have no mask code.
#pragma once

#include "../attention/online_softmax.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/sync.cuh"
#include "../ptx/tma.cuh"
#include "../ptx/wgmma.cuh"
#include "../tile/gemm.cuh"
#include "forward_block.cuh"
#include "forward_epilogue.cuh"
#include "forward_producer.cuh"
#include "forward_rope.cuh"
#include "forward_scores.cuh"
#include "forward_staging.cuh"
#include "forward_tiles.cuh"
#include "shared_dots.cuh"

namespace heddle::sm90 {

/// Score: forward_scores.cuh.
template <class Config, class Score = PlainScore>
struct AttentionForward : ForwardBlock<Config, Score> {
  using Block = ForwardBlock<Config, Score>;
  using Block::kCrossTiles;
  using Block::kEarlyRelease;
  using Block::kPvSlices;
  using Block::kQkSlices;
  using Block::kSplitF16;
  using Block::kStagedRotations;
  using Block::kTileN;
  using typename Block::C;
  using typename Block::ItemRing;
  using typename Block::KTile;
  using typename Block::KvRing;
  using typename Block::QRing;
  using typename Block::QTile;
  using typename Block::Softmax;
  using typename Block::T;
  using typename Block::VTile;
  using Epilogue = ForwardEpilogue<Block>;
  using Producer = ForwardProducer<Block>;
  using Work = ForwardWork<Block>;

  using Scores = float[kTileN / 2];
  using Weights = u32[kPvSlices][4];
  using Output = float[Block::kVColumns / 2];
  using Dropped = FragmentDropout<C::kDropout, kTileN>;

  /// How a query tile follows another: see cross_late. Consumers in turns cannot issue one product
  /// now and the other later; score expressions leave no registers for it.
  static constexpr bool kLateCross =
      kEarlyRelease || (C::kRopeDim > 0 && Block::kPlain && kCrossTiles && !C::kTakeTurns);
  static constexpr bool kCrosses = kCrossTiles || kLateCross;

  /// One consumer warp group: 64 rows of each query tile.
  struct Consumer {
    const ForwardArguments& args;
    const int consumer;  ///< which, uniform in the warp group
    ForwardTiles<Block> tiles;
    ForwardScores<Block, Score> scores;

    HEDDLE_DEVICE Consumer(const ForwardArguments& args, u32 shared, int consumer)
        : args(args), consumer(consumer), tiles(shared, consumer), scores(args) {}

    HEDDLE_DEVICE void wait_turn() const {
      if constexpr (C::kTakeTurns) ptx::barrier_sync(Block::kTurnBarrier + consumer, 256);
    }
    HEDDLE_DEVICE void pass_turn() const {
      if constexpr (C::kTakeTurns)
        ptx::barrier_arrive(
            Block::kTurnBarrier + (consumer + 1 == C::kConsumers ? 0 : consumer + 1), 256);
    }

    /// Waits for the query tile at hand.
    HEDDLE_DEVICE void wait_q(const Work& work) const {
      if constexpr (Block::kRotators)
        tiles.wait_rotated();
      else if constexpr (C::kRopeDim == 0)
        tiles.wait_q();
      else
        ForwardRope<Block>::wait_and_rotate(args, tiles, work);
    }

    /// The same with staged rotations, also past the last query tile: then for the staging to be
    /// free. It comes before the O of the tile before is staged.
    HEDDLE_DEVICE void take_q(const Work& work) const {
      if (work.q_tile >= 0)
        wait_q(work);
      else
        tiles.wait_staging();
    }

    /// Scores of `key_tile` and their softmax, with what they read of their cells.
    template <bool kMasked>
    HEDDLE_DEVICE void exponentiate(Scores& s, const Work& work, int key_tile, Softmax& softmax,
                                    float (&correction)[2]) {
      tiles.wait_tiled();
      scores.template exponentiate<kMasked>(s, work, consumer, key_tile, tiles.tiled(), softmax,
                                            correction);
      tiles.release_tiled();
    }

    /// The same product, in a loop: written out, descriptors of all slices of wide heads would be
    /// kept from step to step, for which there are no registers (d 512: 956 bytes spilled). The
    /// last box comes apart, and either begins with a fence: else the assembler adds some, and says
    /// so.
    HEDDLE_DEVICE static void issue_by_boxes(Scores& s, const tile::KMajor<QTile>& q,
                                             const tile::KMajor<KTile>& k) {
      constexpr int kOfBox = tile::kBoxColumns / 16, kBoxes = (kQkSlices - 1) / kOfBox;
      const auto issue = [&](int slice, bool accumulate) {
        ptx::Wgmma<kTileN>::template ss<T, ptx::Major::k, ptx::Major::k>(
            s, q.slice(slice), k.slice(slice), accumulate);
      };
#pragma unroll 1
      for (int box = 0; box < kBoxes; ++box) {
        ptx::wgmma_fence();
#pragma unroll
        for (int n = 0; n < kOfBox; ++n) issue(box * kOfBox + n, box > 0 || n > 0);
      }
      ptx::wgmma_fence();
#pragma unroll
      for (int slice = kBoxes * kOfBox; slice < kQkSlices; ++slice) issue(slice, slice > 0);
    }

    /// s = Q K^T for the tiles at hand; asynchronous, one group.
    HEDDLE_DEVICE void issue_scores(Scores& s) const {
      const tile::KMajor<QTile> q(tiles.q());
      const tile::KMajor<KTile> k(tiles.k());
      if constexpr (C::kParts > 1) {
        issue_by_boxes(s, q, k);
      } else {
        ptx::wgmma_fence();
        tile::issue_product<T, kTileN, kQkSlices>(s, q, k, false);
      }
      ptx::wgmma_commit();
    }

    /// out += P V for the V tile at hand; asynchronous, one group.
    HEDDLE_DEVICE void issue_output(Output& out, const Weights& weights) const {
      const tile::MnMajor<VTile> v(tiles.v(), tiles.part() * Block::kVColumns);
      ptx::wgmma_fence();
      tile::issue_product<T, Block::kVColumns>(out, weights, v, true);
      ptx::wgmma_commit();
    }

    HEDDLE_DEVICE static void correct_output(Output& out, const float (&correction)[2]) {
      if constexpr (C::kSlack > 0) {
        if (!__any_sync(0xffffffffu, correction[0] != 1.f || correction[1] != 1.f)) return;
      }
      attention::scale_rows(out, correction);
    }

    /// Scores and probabilities of a query tile's last key tile, with nothing to hide them behind.
    HEDDLE_DEVICE void start(const Work& work, Weights& weights, Softmax& softmax,
                             float (&correction)[2]) {
      Scores s;
      Dropped dropped;
      if constexpr (!kStagedRotations) wait_q(work);
      if constexpr (!C::kUpwards) tiles.skip_k(work.others(consumer));
      tiles.wait_k();
      issue_scores(s);
      scores.draw(dropped, work, consumer, work.first_key_tile(consumer));
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      tiles.release_k();
      scores.reset(softmax);
      exponentiate<true>(s, work, work.first_key_tile(consumer), softmax, correction);
      tile::pack_fragment<T, kTileN>(weights, s);
      drop_weights(weights, args.problem, dropped);
      if constexpr (!C::kUpwards) tiles.skip_v(work.others(consumer));
    }

    /// The scores and softmax of `key_tile` while the previous key tile's P V is added; `weights`
    /// become `key_tile`'s probabilities. With kCross the key tile is the first of the next query
    /// tile: `softmax` starts afresh, and `out` is left complete but for its row factors.
    template <bool kMasked, bool kCross>
    HEDDLE_DEVICE void step(const Work& work, int key_tile, Output& out, Weights& weights,
                            Softmax& softmax, float (&correction)[2]) {
      Scores s;
      Dropped dropped;
      tiles.wait_k();
      wait_turn();
      issue_scores(s);
      tiles.wait_v();
      issue_output(out, weights);
      pass_turn();
      scores.draw(dropped, work, consumer, key_tile);
      ptx::wgmma_wait<1>();
      ptx::pin(s);
      tiles.release_k();
      if constexpr (kCross) scores.reset(softmax);
      exponentiate<kMasked>(s, work, key_tile, softmax, correction);
      ptx::pin(s);
      ptx::wgmma_wait<0>();
      ptx::pin(out);
      ptx::pin(s);
      tiles.release_v();
      if constexpr (!kCross) correct_output(out, correction);
      tile::pack_fragment<T, kTileN>(weights, s);
      drop_weights(weights, args.problem, dropped);
    }

    /// The step between two query tiles where Q is not there yet, or to be rotated: it is waited
    /// for under the last P V, and this tile's O is written under the next one's first scores.
    HEDDLE_DEVICE void cross_late(const Work& work, const Work& following, Output& out,
                                  Weights& weights, Softmax& softmax, float (&correction)[2]) {
      tiles.wait_v();
      issue_output(out, weights);
      float factor[2];
      Epilogue::finish(args, work, consumer, scores, softmax, factor);
      wait_q(following);
      tiles.skip_k((C::kUpwards ? work : following).others(consumer));
      tiles.wait_k();
      Scores s;
      Dropped dropped;
      issue_scores(s);
      scores.draw(dropped, following, consumer, following.first_key_tile(consumer));
      ptx::wgmma_wait<1>();
      ptx::pin(out);
      tiles.release_v();
      Epilogue::store(args, tiles, work, out, factor);
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      tiles.release_k();
      if constexpr (C::kUpwards) tiles.skip_v(work.others(consumer));
      scores.reset(softmax);
      exponentiate<true>(s, following, following.first_key_tile(consumer), softmax, correction);
      tile::pack_fragment<T, kTileN>(weights, s);
      drop_weights(weights, args.problem, dropped);
      if constexpr (!C::kUpwards) tiles.skip_v(following.others(consumer));
    }

    /// The last P V of a query tile that none follows at once.
    HEDDLE_DEVICE void last_output(const Work& work, Output& out, const Weights& weights) {
      tiles.wait_v();
      issue_output(out, weights);
      ptx::wgmma_wait<0>();
      ptx::pin(out);
      tiles.release_v();
      if constexpr (C::kUpwards) {
        tiles.skip_k(work.others(consumer));
        tiles.skip_v(work.others(consumer));
      }
    }

    /// The first query tile.
    HEDDLE_DEVICE Work first_work() {
      const Work work = tiles.next_work();
      if constexpr (kStagedRotations) {
        if (work.q_tile >= 0) {
          take_q(work);
          tiles.leave_staging();
        }
      }
      return work;
    }

    /// A query tile none of whose rows sees a key. Gives the next one.
    HEDDLE_DEVICE Work pass_empty(const Work& work) {
      Output out;
      attention::clear(out);
      Softmax softmax;
      scores.reset(softmax);
      if constexpr (kStagedRotations) {
        tiles.release_q();
        const Work following = tiles.next_work();
        take_q(following);
        Epilogue::run(args, tiles, work, scores, out, softmax);
        return following;
      } else {
        wait_q(work);
        Epilogue::run(args, tiles, work, scores, out, softmax);
        return tiles.next_work();
      }
    }

    /// The key tiles of a query tile after the first one.
    HEDDLE_DEVICE void meet_keys(const Work& work, Output& out, Weights& weights, Softmax& softmax,
                                 float (&correction)[2]) {
      const int past = work.past_key_tile(consumer);
      for (int key_tile = work.first_key_tile(consumer) + Block::kKeyStep; key_tile != past;
           key_tile += Block::kKeyStep) {
        if (work.all_visible(consumer, key_tile))
          step<false, false>(work, key_tile, out, weights, softmax, correction);
        else
          step<true, false>(work, key_tile, out, weights, softmax, correction);
      }
      if constexpr (kCrossTiles || kEarlyRelease) tiles.release_q();
    }

    /// From a query tile to the one that follows at once, whose first key tile is met with it.
    HEDDLE_DEVICE void cross(const Work& work, const Work& following, Output& out, Weights& weights,
                             Softmax& softmax, float (&correction)[2]) {
      if constexpr (kLateCross) {
        cross_late(work, following, out, weights, softmax, correction);
      } else {
        Softmax done = softmax;
        wait_q(following);
        const int passing = (C::kUpwards ? work : following).others(consumer);
        tiles.skip_k(passing);
        step<true, true>(following, following.first_key_tile(consumer), out, weights, softmax,
                         correction);
        tiles.skip_v(passing);
        Epilogue::run(args, tiles, work, scores, out, done);
      }
      attention::clear(out);
    }

    /// Query tiles that see keys, as many as follow each other. Gives the one after them.
    HEDDLE_DEVICE Work meet(Work work) {
      Output out;
      attention::clear(out);
      Softmax softmax;
      float correction[2];
      Weights weights;
      start(work, weights, softmax, correction);
      while (true) {
        meet_keys(work, out, weights, softmax, correction);
        const Work following = kCrosses ? tiles.next_work() : work;
        if (!kCrosses || following.q_tile < 0 || following.empty()) {
          last_output(work, out, weights);
          if constexpr (kStagedRotations) take_q(following);
          Epilogue::run(args, tiles, work, scores, out, softmax);
          return kCrosses ? following : tiles.next_work();
        }
        cross(work, following, out, weights, softmax, correction);
        work = following;
      }
    }

    HEDDLE_DEVICE void run() {
      if (consumer == C::kConsumers - 1) pass_turn();  // the first turn is consumer 0's
      Work work = first_work();
      while (work.q_tile >= 0) work = work.empty() ? pass_empty(work) : meet(work);
      Epilogue::wait();
    }
  };

  /// kThreads threads, kSharedBytes; persistent blocks, kBlocks a processor.
  HEDDLE_DEVICE static void run(const ForwardArguments& args) { run_with<Consumer>(args); }

  template <class ConsumerOf>
  HEDDLE_DEVICE static void run_with(const ForwardArguments& args) {
    extern __shared__ u8 dynamic_shared[];
    const u32 shared =
        (shared_address(dynamic_shared) + tile::kTileAlignment - 1) & ~(tile::kTileAlignment - 1);
    // The same in every lane, so that what depends on it lives in uniform registers.
    const int warp_group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);

    if (threadIdx.x == 0) {
      if constexpr (!C::kSequenceMaps) {
        for (int map = 0; map < (is_same<typename C::Result, T> ? 4 : 3); ++map)
          ptx::tma_prefetch(&args.q + map);
      }
      KvRing{shared + Block::kAt.k_ring}.init(1, 4 * C::kConsumers);
      KvRing{shared + Block::kAt.v_ring}.init(1, 4 * C::kConsumers);
      // A third thread of the producer's group reads items in both.
      ItemRing{shared + Block::kAt.item_ring}.init(
          1, 128 * (C::kConsumers + Block::kRotators) +
                 (kStagedRotations || Block::ScoreTiles::kThere ? 2 : 1));
      if constexpr (Block::ScoreTiles::kThere)
        typename Block::ScoreTiles::Ring{shared + Block::kAt.tiled_ring}.init(1, 4 * C::kConsumers);
      for (int group = 0; group < Block::kRowGroups; ++group)
        QRing{shared + Block::kAt.q_rings + group * QRing::kBytes}.init(
            1, C::kOutputAliasesQ ? 1 : 4 * C::kParts);
      for (int consumer = 0; kStagedRotations && consumer < C::kConsumers; ++consumer)
        typename Block::StagingRing{shared + Block::kAt.staging_rings +
                                    consumer * Block::StagingRing::kBytes}
            .init(1, 128);
      for (int n = 0; Block::kRotators && n < C::kConsumers * C::kQStages; ++n)
        ptx::mbarrier_init(shared + Block::kAt.rotated + 8 * n, 128);
      SharedDots<Block>::init(shared);
      ptx::mbarrier_init_fence();
    }
    if constexpr (C::kRanks > 1)
      ptx::cluster_sync();
    else
      __syncthreads();

    if (warp_group == 0) {
      ptx::registers_shrink<Block::kProducerRegisters>();
      if (threadIdx.x == 0) Producer::load_tiles(args, shared);
      if (threadIdx.x == 32) Producer::deal(args, shared);
      if constexpr (C::kLengths) {
        if (threadIdx.x >= 96) Producer::end_rows_beyond(args);
      }
      if constexpr (kStagedRotations) {
        static_assert(!Block::ScoreTiles::kThere);
        if (threadIdx.x == 64) ForwardStaging<Block>::run(args, shared);
      } else if constexpr (Block::ScoreTiles::kThere) {
        if (threadIdx.x == 64) Producer::load_scores(args, shared);
      }
    } else if (Block::kRotators && warp_group > C::kConsumers) {
      ptx::registers_shrink<Block::kRotatorRegisters>();
      if constexpr (Block::kRotators) ForwardRope<Block>::run(args, shared);
    } else {
      ptx::registers_grow<Block::kConsumerRegisters>();
      // What makes the rotations may still run.
      if constexpr (C::kRopeDim > 0 && !kStagedRotations) ptx::grid_dependency_wait();
      ConsumerOf(args, shared, warp_group - 1).run();
    }
    // The other block may still reach in here.
    if constexpr (C::kRanks > 1) {
      __syncwarp();
      ptx::cluster_sync();
    }
  }
};

}  // namespace heddle::sm90
