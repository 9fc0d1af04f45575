// Heddle's C++ graph builder. It keeps the names of cuDNN's frontend, so that a program written
// against that ports by `namespace fe = heddle::frontend;`. Header-only, over the C interface in
// heddle.h.
//
//   namespace fe = heddle::frontend;
//   fe::graph::Graph graph;
//   graph.set_io_data_type(fe::DataType_t::BFLOAT16).set_intermediate_data_type(fe::DataType_t::FLOAT);
//   auto q = graph.tensor(fe::graph::Tensor_attributes().set_name("q").set_dim({2, 8, 512, 64}));
//   ... k, v ...
//   auto [o, stats] = graph.sdpa(q, k, v, fe::graph::SDPA_attributes().set_generate_stats(true)
//                                             .set_attn_scale(0.125f).set_causal_mask(true));
//   o->set_output(true);
//   stats->set_output(true).set_data_type(fe::DataType_t::FLOAT);
//   fe::Handle cpu;
//   if (auto error = graph.build(cpu, {fe::HeurMode_t::A}); error.is_bad())
//   puts(error.get_message().c_str()); graph.execute(cpu, {{q, ...}, {k, ...}, {v, ...}, {o, ...},
//   {stats, ...}}, workspace);
#pragma once

#include "heddle/frontend/enums.h"
#include "heddle/frontend/error.h"
#include "heddle/frontend/graph.h"
#include "heddle/frontend/score_modifiers.h"
