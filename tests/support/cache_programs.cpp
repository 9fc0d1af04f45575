#include "support/cache_programs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace heddle::testing {

using graph::kNone;
using graph::TensorId;

namespace {

class Draw {
 public:
  Draw(Random& random, const CacheOptions& options)
      : random_(random), structure_(random.structure()), options_(options) {
    program_.seed = random.seed();
    program_.variant = random.variant();
    program_.may_be_undefined = options.no_numbers > 0;
    io_ = options.dtypes[static_cast<size_t>(
        structure_.integer(0, static_cast<int64_t>(options.dtypes.size()) - 1))];
    program_.graph.io_dtype = io_;
    program_.graph.intermediate_dtype = program_.graph.compute_dtype = DataType::f32;
    batch_ = random.integer(1, 3);
    kv_heads_ = random.integer(1, 3);
    q_heads_ = kv_heads_ * structure_.integer(1, 4);
    rows_ = random.integer(1, options.max_new_rows);
    columns_ = head_dim();
    packed_ = wants(options.packed);
    v_columns_ = packed_ || wants(0.6) ? columns_ : head_dim();
    has_past_ = wants(options.has_past);
    const bool paged = has_past_ && wants(options.paged);
    const bool ring = has_past_ && !paged && wants(options.ring);
    in_place_ = paged || (has_past_ && wants(options.in_place));
    op_.ring = ring;
    past_rows_ = random.integer(1, options.max_past);
    capacity_ = in_place_ ? past_rows_ : past_rows_ + random.integer(0, rows_ + 3);
    if (!has_past_) capacity_ = random.integer(1, rows_ + 4);
    block_ = paged ? int64_t{1} << random.integer(0, 4) : 0;
  }

  Program append() {
    inputs();
    lengths();
    caches();
    if (wants(options_.norms)) op_.q_norm = weights("q_norm");
    if (wants(options_.norms)) op_.k_norm = weights("k_norm");
    op_.q_epsilon = structure_.one_of({1e-6, 0.1}), op_.k_epsilon = structure_.one_of({1e-6, 0.2});
    if (wants(options_.rotates)) rotation();
    op_.q_out = result("q_out", io_, {batch_, q_heads_, rows_, columns_});
    op_.lengths_q = result("lengths_q", DataType::i32, {batch_, 1, 1, 1});
    op_.lengths_kv = result("lengths_kv", DataType::i32, {batch_, 1, 1, 1});
    program_.graph.nodes.push_back({"append", op_});
    if (options_.attends > 0 && wants(options_.attends) && op_.k_scale == kNone) attend();
    return std::move(program_);
  }

 private:
  bool wants(double chance) { return structure_.chance(chance); }
  int64_t head_dim() {
    return 8 * structure_.integer(options_.min_head_dim / 8, options_.max_head_dim / 8);
  }
  /// A number, or none.
  double or_none(double number) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (!random_.chance(options_.no_numbers)) return number;
    return random_.one_of({std::nan(""), kInfinity, -kInfinity});
  }

  TensorId tensor(const char* name, DataType dtype, const Dims& dims, bool odd) {
    const TensorId id =
        program_.add(name, dtype, dims, odd ? random_strides(random_, dims) : Dims{});
    program_.allocate(id);
    return id;
  }
  TensorId result(const char* name, DataType dtype, const Dims& dims) {
    return tensor(name, dtype, dims, dims[3] > 1 && wants(0.7));
  }
  TensorId normal(const char* name, const Dims& dims) {
    const TensorId id = tensor(name, io_, dims, wants(0.7));
    program_.fill(id, [&] { return or_none(random_.normal()); });
    return id;
  }

  void inputs() {
    if (packed_) {
      op_.q = normal("qkv", {batch_, q_heads_ + 2 * kv_heads_, rows_, columns_});
      return;
    }
    op_.q = normal("q", {batch_, q_heads_, rows_, columns_});
    op_.k = normal("k", {batch_, kv_heads_, rows_, columns_});
    op_.v = normal("v", {batch_, kv_heads_, rows_, v_columns_});
  }

  /// Totals within the caches, but for a few.
  void lengths() {
    const auto integers = [&](const char* name, auto&& value) {
      const TensorId id =
          program_.add(name, structure_.one_of({DataType::i32, DataType::i64}), {batch_, 1, 1, 1});
      program_.allocate(id);
      for (int64_t b = 0; b < batch_; ++b) program_.set_integer(id, value(b), b);
      return id;
    };
    const auto strange = [&](int64_t usual) {
      if (!random_.chance(options_.lengths_out_of_range)) return usual;
      return random_.one_of({int64_t{-5}, int64_t{0}, capacity_ + rows_ + 7, int64_t{INT32_MAX}});
    };
    std::vector<int64_t> added(static_cast<size_t>(batch_), rows_);
    if (wants(options_.new_lengths)) {
      op_.seq_len_q = integers("seq_len_q", [&](int64_t b) {
        added[static_cast<size_t>(b)] = random_.integer(0, rows_);
        return strange(added[static_cast<size_t>(b)]);
      });
    }
    if (!has_past_ && wants(0.5)) return;
    op_.seq_len_kv_offset = structure_.one_of({int64_t{0}, int64_t{1}, rows_});
    op_.seq_len_kv = integers("seq_len_kv", [&](int64_t b) {
      const int64_t fits = std::max<int64_t>(0, past_rows_ - added[static_cast<size_t>(b)]);
      const int64_t past = !has_past_ ? 0 : random_.integer(0, op_.ring ? 3 * past_rows_ : fits);
      return strange(past + added[static_cast<size_t>(b)] - op_.seq_len_kv_offset);
    });
  }

  TensorId scales(const char* name, DataType type, int64_t columns) {
    const TensorId id = tensor(name, DataType::f32,
                               {1, wants(0.5) ? kv_heads_ : 1, 1, wants(0.5) ? columns : 1}, false);
    const double unit = type == DataType::u8 ? 0.3 : type == DataType::i8 ? 0.02 : 0.01;
    program_.fill(
        id, [&] { return or_none(random_.chance(0.05) ? 0 : unit * random_.uniform(0.5, 1.5)); });
    return id;
  }

  TensorId page_table(const char* name, int64_t pages, int64_t blocks) {
    const TensorId id = program_.add(name, DataType::i32, {batch_, 1, pages, 1});
    program_.allocate(id);
    std::vector<int64_t> free;
    for (int64_t n = 0; n < blocks; ++n) free.push_back(n);
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t page = 0; page < pages; ++page) {
        const auto pick = random_.integer(0, static_cast<int64_t>(free.size()) - 1);
        const int64_t chosen = free[static_cast<size_t>(pick)];
        free.erase(free.begin() + pick);
        const bool bad = random_.chance(options_.bad_pages);
        const int64_t entry =
            bad ? random_.one_of({int64_t{-1}, blocks, int64_t{1} << 30}) : chosen;
        program_.set(id, static_cast<double>(entry), b, 0, page);
      }
    }
    return id;
  }

  void caches() {
    const bool codes = wants(options_.codes);
    const auto& types = options_.code_types;
    const DataType type = codes ? types[static_cast<size_t>(structure_.integer(
                                      0, static_cast<int64_t>(types.size()) - 1))]
                                : io_;
    for (const auto& [name, columns, past, present, scale, table] :
         {std::tuple{std::string("k"), columns_, &op_.past_k, &op_.present_k, &op_.k_scale,
                     &op_.page_table_k},
          {std::string("v"), v_columns_, &op_.past_v, &op_.present_v, &op_.v_scale,
           &op_.page_table_v}}) {
      if (codes) *scale = scales((name + "_scale").c_str(), type, columns);
      const int64_t elements = type == DataType::u8 ? columns / 2 : columns;
      Dims dims{batch_, kv_heads_, capacity_, elements};
      if (block_ > 0) {
        const int64_t pages = (capacity_ + block_ - 1) / block_, blocks = batch_ * pages + 2;
        *table = page_table((name + "_table").c_str(), pages, blocks);
        dims = {blocks, kv_heads_, block_, elements};
      }
      if (has_past_) {
        Dims before = dims;
        if (block_ == 0) before[2] = past_rows_;
        *past = tensor(("past_" + name).c_str(), type, before, wants(0.7));
        program_.fill(*past, [&, type = type] {
          return type == DataType::i8   ? static_cast<double>(random_.integer(-128, 127))
                 : type == DataType::u8 ? static_cast<double>(random_.integer(0, 255))
                                        : random_.normal();
        });
      }
      const Dims strides = in_place_    ? program_.graph[*past].strides
                           : wants(0.7) ? random_strides(random_, dims)
                                        : Dims{};
      *present = program_.add("present_" + name, type, dims, strides);
      if (in_place_) {
        program_.in_place[program_.graph[*present].uid] = program_.graph[*past].uid;
      } else {
        program_.allocate(*present);
      }
    }
  }

  TensorId weights(const char* name) {
    const TensorId id =
        tensor(name, structure_.one_of({io_, DataType::f32}), {1, 1, 1, columns_}, false);
    program_.fill(id, [&] { return random_.uniform(0.5, 1.5); });
    return id;
  }

  void rotation() {
    const int64_t half = options_.pairs > 0 ? options_.pairs : structure_.integer(1, columns_ / 2);
    const int64_t table_rows = 3 * past_rows_ + rows_ + 1;
    for (const auto& [name, id] : {std::pair{"cosines", &op_.cosines}, {"sines", &op_.sines}}) {
      *id = tensor(name, structure_.one_of({io_, DataType::f32}), {table_rows, 1, 1, half},
                   half > 1 && wants(0.3));
      program_.fill(*id, [&] { return random_.uniform(-1, 1); });
    }
    if (wants(options_.interleaved)) op_.pairing = graph::RopePairing::interleaved;
    if (!wants(options_.positions)) return;
    op_.positions = tensor("positions", structure_.one_of({DataType::i32, DataType::i64}),
                           {wants(0.3) ? 1 : batch_, 1, rows_, 1}, false);
    program_.fill(op_.positions, [&] {
      const bool outside = random_.chance(options_.positions_out_of_range);
      if (!outside) return static_cast<double>(random_.integer(0, table_rows - 1));
      return random_.one_of({-0x1p63, -3.0, static_cast<double>(table_rows) + 100, 0x1p63});
    });
  }

  /// Causal attention of the new rows to the caches, as a decoder does.
  void attend() {
    graph::Sdpa sdpa;
    sdpa.q = op_.q_out, sdpa.k = op_.present_k, sdpa.v = op_.present_v;
    sdpa.page_table_k = op_.page_table_k, sdpa.page_table_v = op_.page_table_v;
    sdpa.k_scale = op_.k_scale, sdpa.v_scale = op_.v_scale;
    sdpa.attention.padding_mask = true;
    sdpa.attention.seq_len_q = op_.lengths_q, sdpa.attention.seq_len_kv = op_.lengths_kv;
    sdpa.attention.diagonal_alignment = graph::DiagonalAlignment::bottom_right;
    sdpa.attention.right_bound = 0;
    sdpa.attention.attn_scale = 1 / std::sqrt(static_cast<double>(columns_));
    if (op_.ring) {
      sdpa.ring_kv = true;
      sdpa.max_seq_len_kv = 4 * past_rows_ + 2 * rows_;
    } else if (wants(0.4)) {
      sdpa.attention.left_bound = random_.integer(1, past_rows_);
    }
    sdpa.o = result("o", io_, {batch_, q_heads_, rows_, v_columns_});
    for (TensorId id : {op_.q_out, op_.lengths_q, op_.lengths_kv}) {
      if (!wants(0.7)) continue;
      program_.graph[id].is_virtual = true;
      program_.memory.erase(program_.graph[id].uid);
    }
    program_.graph.nodes.push_back({"attention", sdpa});
  }

  Random &random_, &structure_;
  const CacheOptions& options_;
  DataType io_;
  int64_t batch_, q_heads_, kv_heads_, rows_, columns_, v_columns_;
  int64_t past_rows_, capacity_, block_;
  bool packed_, has_past_, in_place_;
  graph::CacheAppend op_;
  Program program_;
};

}  // namespace

Program random_cache_append(Random& random, const CacheOptions& options) {
  return Draw(random, options).append();
}

}  // namespace heddle::testing
