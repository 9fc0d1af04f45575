// A kernel's configuration (the plain structs of kernels/*/…config.h) as source and in words. Each
// struct's fields are listed once, in the order of the struct.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>

#include "engine/cuda/device_names.h"
#include "engine/cuda/kernel_unit.h"
#include "sm80/decode_config.h"
#include "sm80/general_config.h"
#include "sm90/backward_config.h"
#include "sm90/forward_config.h"
#include "streaming/config.h"

namespace heddle::engine::cuda {

/// visit(name, value), or visit(name, value, words): what a flag that is set, or an element of
/// another type than the first, is to people.
template <class Visitor, std::same_as<sm90::ForwardConfig> Config>
void visit_fields(Visitor& visit, const Config& c) {
  visit("element", c.element);
  visit("result", c.result, c.planes > 1 ? "" : "results");
  visit("planes", c.planes);
  visit("qk_dim", c.qk_dim);
  visit("v_dim", c.v_dim);
  visit("tile_n", c.tile_n);
  visit("consumers", c.consumers);
  visit("parts", c.parts);
  visit("ranks", c.ranks);
  visit("blocks", c.blocks);
  visit("stages", c.stages);
  visit("q_stages", c.q_stages);
  visit("take_turns", c.take_turns);
  visit("upwards", c.upwards);
  visit("output_aliases_q", c.output_aliases_q);
  visit("output_rounds", c.output_rounds);
  visit("slack", c.slack);
  visit("upper_varies", c.upper_varies, "causal");
  visit("lower_varies", c.lower_varies, "window");
  visit("positive_scale", c.positive_scale);
  visit("lengths", c.lengths, "lengths");
  visit("sink", c.sink, "sink");
  visit("row_max", c.row_max, "row maximum");
  visit("input_is_log2", c.input_is_log2, "base 2");
  visit("has_score", c.has_score, "score expression");
  visit("only_hides", c.only_hides);
  visit("loads_rows", c.loads_rows);
  visit("dropout", c.dropout);
  visit("tiled", c.tiled);
  visit("tiled_element", c.tiled_element);
  visit("tiled_stages", c.tiled_stages);
  visit("rope_dim", c.rope_dim);
  visit("rope_first", c.rope_first);
  visit("rope_pairing", c.rope_pairing);
}

template <class Visitor, std::same_as<sm90::BackwardConfig> Config>
void visit_fields(Visitor& visit, const Config& c) {
  visit("element", c.element);
  visit("result", c.result, c.planes > 1 ? "" : "results");
  visit("planes", c.planes);
  visit("codes", c.codes, "products of fp8");
  visit("qk_dim", c.qk_dim);
  visit("v_dim", c.v_dim);
  visit("by_gradient", c.by_gradient);
  visit("transposed", c.transposed);
  visit("tile_m", c.tile_m);
  visit("consumers", c.consumers);
  visit("parts", c.parts);
  visit("ranks", c.ranks);
  visit("dot_buffers", c.dot_buffers);
  visit("blocks", c.blocks);
  visit("all_keys", c.all_keys);
  visit("q_stages", c.q_stages);
  visit("d_o_stages", c.d_o_stages);
  visit("dk_under_dp", c.dk_under_dp);
  visit("upper_varies", c.upper_varies, "causal");
  visit("lower_varies", c.lower_varies, "window");
  visit("lengths", c.lengths, "lengths");
  visit("unit_slope", c.unit_slope);
  visit("slope_factor", c.slope_factor);
  visit("max_and_sum", c.max_and_sum, "maximum and sum");
  visit("input_is_log2", c.input_is_log2, "base 2");
  visit("few_registers", c.few_registers);
  visit("deterministic", c.deterministic, "deterministic");
  visit("downwards", c.downwards);
  visit("has_score", c.has_score, "score expression");
  visit("dropout", c.dropout);
  visit("tiled", c.tiled);
  visit("tiled_element", c.tiled_element);
  visit("tiled_stages", c.tiled_stages);
  visit("tiled_gradient", c.tiled_gradient, "gradient of tiles");
  visit("cluster", c.cluster);
}

template <class Visitor, std::same_as<sm80::GeneralConfig> Config>
void visit_fields(Visitor& visit, const Config& c) {
  visit("element", c.element);
  visit("result", c.result, "results");
  visit("qk_dim", c.qk_dim);
  visit("v_dim", c.v_dim);
  visit("warps", c.warps);
  visit("parts", c.parts);
  visit("tile_m", c.tile_m);
  visit("tile_n", c.tile_n);
  visit("stages", c.stages);
  visit("in_turns", c.in_turns);
  visit("aligned", c.aligned);
  visit("rows_k", c.rows_k, "K");
  visit("rows_v", c.rows_v, "V");
  visit("block_mask", c.block_mask, "block mask");
  visit("input_is_log2", c.input_is_log2, "base 2");
  visit("want_dk", c.want_dk, "dK");
  visit("want_dv", c.want_dv, "dV");
  visit("max_and_sum", c.max_and_sum, "maximum and sum");
  visit("has_score", c.has_score, "score expression");
  visit("dropout", c.dropout);
  visit("mask_element", c.mask_element);
  visit("load_element", c.load_element);
}

template <class Visitor, std::same_as<sm80::DecodeConfig> Config>
void visit_fields(Visitor& visit, const Config& c) {
  visit("element", c.element);
  visit("result", c.result, "results");
  visit("k", c.k, "K");
  visit("v", c.v, "V");
  visit("qk_dim", c.qk_dim);
  visit("v_dim", c.v_dim);
  visit("row_tiles", c.row_tiles);
  visit("turned", c.turned);
  visit("query_parts", c.query_parts);
  visit("warps", c.warps);
  visit("keys", c.keys);
  visit("stages", c.stages);
  visit("rows_apart", c.rows_apart);
  visit("together", c.together);
  visit("warp_groups", c.warp_groups);
  visit("maps", c.maps);
  visit("twins", c.twins);
  visit("stages_once", c.stages_once);
  visit("rows_k", c.rows_k, "K");
  visit("rows_v", c.rows_v, "V");
  visit("lengths", c.lengths, "lengths");
  visit("input_is_log2", c.input_is_log2, "base 2");
  visit("has_score", c.has_score, "score expression");
}

template <class Visitor, std::same_as<streaming::NormConfig> Config>
void visit_fields(Visitor& visit, const Config& c) {
  visit("x", c.x);
  visit("w", c.w, "weight");
  visit("b", c.b);
  visit("y", c.y, "y");
  visit("mean", c.mean);
  visit("statistic", c.statistic);
  visit("number", c.number);
  visit("vector", c.vector);
  visit("row_dims", c.row_dims);
  visit("column_dims", c.column_dims);
  visit("vectors", c.vectors);
  visit("threads_per_row", c.threads_per_row);
  visit("centred", c.centred);
  visit("bias", c.bias, "bias");
  visit("residual", c.residual);
  visit("residual_bias", c.residual_bias);
  visit("sum", c.sum);
  visit("adds_residual", c.adds_residual, "residual");
  visit("adds_residual_bias", c.adds_residual_bias);
  visit("wants_sum", c.wants_sum, "sum");
}

template <class Visitor, std::same_as<streaming::NormBackwardConfig> Config>
void visit_fields(Visitor& visit, const Config& c) {
  visit("x", c.x);
  visit("w", c.w, "weight");
  visit("dy", c.dy, "dY");
  visit("dx", c.dx);
  visit("d_weight", c.d_weight);
  visit("d_bias", c.d_bias);
  visit("mean", c.mean);
  visit("statistic", c.statistic);
  visit("number", c.number);
  visit("vector", c.vector);
  visit("row_dims", c.row_dims);
  visit("column_dims", c.column_dims);
  visit("vectors", c.vectors);
  visit("threads_per_row", c.threads_per_row);
  visit("centred", c.centred);
  visit("prefetch", c.prefetch);
  visit("wants_dx", c.wants_dx, "dX");
  visit("wants_d_weight", c.wants_d_weight, "dWeight");
  visit("wants_d_bias", c.wants_d_bias, "dBias");
  visit("d_bias_shared", c.d_bias_shared, "its sums in shared memory");
}

template <class Visitor, std::same_as<streaming::ChannelNormConfig> Config>
void visit_fields(Visitor& visit, const Config& c) {
  visit("x", c.x);
  visit("w", c.w, "weight");
  visit("b", c.b);
  visit("y", c.y, "y");
  visit("mean", c.mean);
  visit("statistic", c.statistic);
  visit("running", c.running);
  visit("running_var", c.running_var);
  visit("next", c.next);
  visit("next_var", c.next_var);
  visit("number", c.number);
  visit("vector", c.vector);
  visit("row_dims", c.row_dims);
  visit("column_dims", c.column_dims);
  visit("across", c.across);
  visit("bias", c.bias, "bias");
  visit("running_statistics", c.running_statistics, "running statistics");
}

template <class Visitor, std::same_as<streaming::ChannelNormBackwardConfig> Config>
void visit_fields(Visitor& visit, const Config& c) {
  visit("x", c.x);
  visit("w", c.w, "weight");
  visit("dy", c.dy, "dY");
  visit("dx", c.dx);
  visit("d_weight", c.d_weight);
  visit("d_bias", c.d_bias);
  visit("mean", c.mean);
  visit("statistic", c.statistic);
  visit("number", c.number);
  visit("vector", c.vector);
  visit("row_dims", c.row_dims);
  visit("column_dims", c.column_dims);
  visit("across", c.across);
}

template <class Visitor, std::same_as<streaming::RopeConfig> Config>
void visit_fields(Visitor& visit, const Config& c) {
  visit("x", c.x);
  visit("y", c.y, "y");
  visit("number", c.number);
  visit("pairs", c.pairs);
  visit("aligned", c.aligned);
  visit("interleaved", c.interleaved, "interleaved");
  visit("tables", c.tables, "tables");
  visit("positions", c.positions, "positions");
  visit("positions_per_row", c.positions_per_row);
  visit("ragged", c.ragged, "ragged");
  visit("inverse", c.inverse, "backward");
  visit("rounded", c.rounded, "rounded rotations");
}

template <class Visitor, std::same_as<streaming::CopyConfig> Config>
void visit_fields(Visitor& visit, const Config& c) {
  visit("x", c.x);
  visit("y", c.y, "y");
  visit("x_each", c.x_each);
  visit("y_each", c.y_each);
  visit("ragged", c.ragged, "ragged");
}

template <class Visitor, std::same_as<streaming::ScaledCopyConfig> Config>
void visit_fields(Visitor& visit, const Config& c) {
  visit("x", c.x);
  visit("y", c.y, "y");
  visit("run", c.run);
  visit("writes", c.writes);
  visit("reciprocal", c.reciprocal, "reciprocal");
  visit("ragged", c.ragged, "ragged");
}

template <class Visitor, std::same_as<streaming::CacheAppendConfig> Config>
void visit_fields(Visitor& visit, const Config& c) {
  visit("q", c.q);
  visit("k", c.k, "K");
  visit("v", c.v, "V");
  visit("q_out", c.q_out, "rotated Q");
  visit("k_cache", c.k_cache, "cache of K");
  visit("v_cache", c.v_cache, "cache of V");
  visit("q_weight", c.q_weight);
  visit("k_weight", c.k_weight);
  visit("cosine", c.cosine);
  visit("sine", c.sine);
  visit("qk_dim", c.qk_dim);
  visit("v_dim", c.v_dim);
  visit("rope_dim", c.rope_dim);
  visit("run", c.run);
  visit("table_run", c.table_run);
  visit("wide", c.wide);
  visit("interleaved", c.interleaved, "interleaved");
  visit("paged", c.paged, "paged");
  visit("ring", c.ring, "ring");
  visit("caches", c.caches);
  visit("q_norm", c.q_norm);
  visit("k_norm", c.k_norm);
  visit("new_length_bits", c.new_length_bits);
  visit("total_length_bits", c.total_length_bits);
  visit("position_bits", c.position_bits);
}

/// A field's name as kernels know it: "kQkDim" of qk_dim; of an element its type's, "Element".
std::string device_name(std::string_view field, bool is_type);

/// What a field is in source.
std::string source_of(int value);
std::string source_of(float value);
std::string source_of(bool value);
std::string source_of(Element value);
std::string source_of(attention::Dropout value);
std::string source_of(attention::KeyRows value);
std::string source_of(attention::RopePairing value);
std::string source_of(sm90::Tiled value);

/// A configuration's own type, in namespace heddle or heddle::streaming.
template <class Config>
inline constexpr const char* type_name = "";
template <>
inline constexpr const char* type_name<streaming::NormConfig> = "NormConfig";
template <>
inline constexpr const char* type_name<streaming::NormBackwardConfig> = "NormBackwardConfig";
template <>
inline constexpr const char* type_name<streaming::ChannelNormConfig> = "ChannelNormConfig";
template <>
inline constexpr const char* type_name<streaming::ChannelNormBackwardConfig> =
    "ChannelNormBackwardConfig";
template <>
inline constexpr const char* type_name<streaming::RopeConfig> = "RopeConfig";
template <>
inline constexpr const char* type_name<streaming::CopyConfig> = "CopyConfig";
template <>
inline constexpr const char* type_name<streaming::ScaledCopyConfig> = "ScaledCopyConfig";
template <>
inline constexpr const char* type_name<streaming::CacheAppendConfig> = "CacheAppendConfig";
template <>
inline constexpr const char* type_name<sm80::GeneralConfig> = "sm80::GeneralConfig";
template <>
inline constexpr const char* type_name<sm80::DecodeConfig> = "sm80::DecodeConfig";
template <>
inline constexpr const char* type_name<sm90::ForwardConfig> = "sm90::ForwardConfig";
template <>
inline constexpr const char* type_name<sm90::BackwardConfig> = "sm90::BackwardConfig";

/// `struct Config` of a generated source: the configuration as kValues, and each field by its name,
/// an element as a type.
template <class Config>
std::string config_source(const std::type_identity_t<Config>& config) {
  std::string values, names;
  const auto visit = [&](std::string_view field, const auto& value, const char* = "") {
    using Value = std::decay_t<decltype(value)>;
    constexpr bool kIsType = std::same_as<Value, Element>;
    const std::string source = source_of(value), name = device_name(field, kIsType);
    values += fmt::format("{}.{} = {}", values.empty() ? "" : ", ", field, source);
    if constexpr (kIsType)
      names += fmt::format("  using {} = {};\n", name, device_type(value));
    else
      names += fmt::format("  static constexpr auto {} = {};\n", name, source);
  };
  visit_fields(visit, config);
  return fmt::format("struct Config {{\n  static constexpr {} kValues{{{}}};\n{}}};\n",
                     type_name<Config>, values, names);
}

/// What a configuration is, to people: collects what its fields say.
class ConfigWords {
 public:
  template <class Config>
  explicit ConfigWords(const Config& config) {
    visit_fields(*this, config);
    if constexpr (requires { config.planes; })
      if (config.planes > 1) summary.dtype = "f32";  // Hopper multiplies an f32 as a pair of f16
    if constexpr (requires { config.qk_dim; }) {
      summary.head_dim = fmt::format("{}", config.qk_dim);
      if (config.v_dim != config.qk_dim) summary.head_dim += fmt::format("/{}", config.v_dim);
    }
    if constexpr (requires { config.rope_pairing; })
      if (config.rope_dim > 0)
        add(fmt::format("rope {} {}", config.rope_dim, name(config.rope_pairing)));
  }

  UnitSummary summary;

  void operator()(std::string_view field, Element value, std::string_view words = "");
  void operator()(std::string_view field, bool value, std::string_view words = "");
  void operator()(std::string_view field, attention::Dropout value);
  void operator()(std::string_view field, attention::KeyRows value, std::string_view words);
  template <class Other>
  void operator()(std::string_view, Other) {}

 private:
  void add(std::string_view feature);
};

template <class Config>
UnitSummary summary_of(const std::type_identity_t<Config>& config) {
  return ConfigWords(config).summary;
}

}  // namespace heddle::engine::cuda
