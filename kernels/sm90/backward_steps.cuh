// The steps of a consumer of the Hopper backward, whatever its arithmetic: its products in the
// order its tensor core sees them,
//   ... dP(j) dV(j) | S(j+1) dQ(j) dK(j) | dP(j+1) dV(j+1) | ...
// dS(j) is computed under dV(j), the exponentials of step j+1 under dQ(j) and dK(j). The groups
// meet only in dS, and there a group waits with S(j+1) already behind it.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "../ptx/wgmma.cuh"
#include "../tile/ring.cuh"
#include "backward_block.cuh"

namespace heddle::sm90 {

/// `Main` is the AttentionBackward, `Consumer` one of its warp groups, in 16 bits or in pairs of
/// f16: it begins a product and ends it with so many others behind it, or has made it at once; what
/// is a sum of one step alone it adds up when asked. `head` is that of the step's queries.
template <class Main, class Consumer>
HEDDLE_DEVICE void run_steps(Consumer& group, const BackwardWork& work) {
  using C = typename Main::C;
  const int steps = work.steps();
  typename Main::Block::Step next(work);
  tile::RingPosition<C::kQStages> q_at, q_next;
  tile::RingPosition<C::kDOStages> d_o_at;
  const auto wait_q = [&](const auto& at) {
    ptx::mbarrier_wait(group.q_ring.full(at.stage()), at.parity());
  };
  const auto wait_d_o = [&](const auto& at) {
    ptx::mbarrier_wait(group.d_o_ring.full(at.stage()), at.parity());
  };

  ptx::mbarrier_wait(group.shared + Main::kAt.k_full, 0);
  wait_q(q_at);
  group.begin_s(0);
  group.template end_s<0>();
  group.exponentiate(0, next);
  ptx::mbarrier_wait(group.shared + Main::kAt.v_full, 0);
  wait_d_o(d_o_at);
  group.begin_d_p(0);
  group.issue_d_v(0, false);
  group.template end_d_p<1>();
  group.differentiate(0, 0, next.head);
  if constexpr (C::kTiledGradient) group.tile_gradient().put(0, group.d_s);
  ptx::wgmma_wait<0>();
  group.add_d_v(next.head);
  ptx::mbarrier_arrive(group.d_o_ring.empty(0));

#pragma unroll 1
  for (int step = 0; step + 1 < steps; ++step) {
    const typename Main::Block::Step at = next;  // of `step`
    next.advance(work);
    q_next.advance();
    d_o_at.advance();

    wait_q(q_next);
    group.begin_s(q_next.stage());
    group.issue_d_q(step);
    group.issue_d_k(step, q_at.stage(), step > 0);
    group.template end_s<2>();
    group.exponentiate(q_next.stage(), next);
    ptx::wgmma_wait<1>();  // dQ
    ptx::pin(group.d_q);
    group.send_d_q(step, at);

    if constexpr (!C::kDkUnderDp) {
      ptx::wgmma_wait<0>();
      group.add_d_k(at.head);
      ptx::mbarrier_arrive(group.q_ring.empty(q_at.stage()));
    }
    wait_d_o(d_o_at);
    group.begin_d_p(d_o_at.stage());
    group.issue_d_v(d_o_at.stage(), true);
    if constexpr (C::kDkUnderDp) {
      ptx::wgmma_wait<2>();
      group.add_d_k(at.head);
      ptx::mbarrier_arrive(group.q_ring.empty(q_at.stage()));
    }
    if constexpr (C::kTiledGradient) group.tile_gradient().sum(step, group.d_s);
    group.template end_d_p<1>();
    group.differentiate(d_o_at.stage(), step + 1, next.head);
    if constexpr (C::kTiledGradient) group.tile_gradient().put(step + 1, group.d_s);
    ptx::wgmma_wait<0>();
    group.add_d_v(next.head);
    ptx::mbarrier_arrive(group.d_o_ring.empty(d_o_at.stage()));
    q_at = q_next;
  }

  group.issue_d_q(steps - 1);
  group.issue_d_k(steps - 1, q_at.stage(), steps > 1);
  ptx::wgmma_wait<0>();
  ptx::pin(group.d_q);
  group.send_d_q(steps - 1, next);
  group.add_d_k(next.head);
  if constexpr (C::kTiledGradient) group.tile_gradient().finish(steps - 1, group.d_s);
  group.store();
}

}  // namespace heddle::sm90
