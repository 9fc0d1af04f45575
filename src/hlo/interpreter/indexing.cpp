// gather and scatter. Both walk over the positions of the index array (its dimensions but the index
// vector's); each position names where in the operand a window lies.
#include <algorithm>
#include <limits>

#include "hlo/interpreter/codec.h"
#include "hlo/interpreter/machine.h"
#include "hlo/interpreter/strided.h"

namespace heddle::hlo {
namespace {

bool holds(std::span<const int64_t> dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

// How positions of the index array lead to places in the operand and in the batch dimensions of the
// other array (gather's result, scatter's updates).
struct Positions {
  std::vector<int64_t> sizes;            // of the batch dimensions
  std::vector<int64_t> index_strides;    // of those, in the index array
  std::vector<int64_t> batch_strides;    // of those, in the result or the updates
  std::vector<int64_t> operand_strides;  // of those, in the operand: not 0 for batching dimensions
  int64_t component_stride = 0;          // from one component of an index vector to the next
  int64_t count = 1;
};

Positions positions_of(const Instruction& x, const Shape& operand, const Shape& indices,
                       const Shape& other, std::span<const int64_t> window_dims,
                       std::span<const int64_t> operand_batching,
                       std::span<const int64_t> indices_batching) {
  const int64_t vector_dim = *x.integer("index_vector_dim");
  const auto operand_strides = row_major_strides(operand.dims());
  const auto index_strides = row_major_strides(indices.dims());
  const auto other_strides = row_major_strides(other.dims());
  Positions positions;
  for (int i = 0; i < indices.rank(); ++i) {
    if (i == vector_dim) {
      positions.component_stride = index_strides[i];
      continue;
    }
    positions.sizes.push_back(indices.dim(i));
    positions.index_strides.push_back(index_strides[i]);
    positions.count *= indices.dim(i);
    int64_t along = 0;
    for (size_t j = 0; j < indices_batching.size(); ++j) {
      if (indices_batching[j] == i) along = operand_strides[operand_batching[j]];
    }
    positions.operand_strides.push_back(along);
  }
  for (int i = 0; i < other.rank(); ++i) {
    if (!holds(window_dims, i)) positions.batch_strides.push_back(other_strides[i]);
  }
  return positions;
}

// Where position number `p` leads, in elements.
struct Place {
  int64_t index = 0;
  int64_t batch = 0;
  int64_t operand = 0;
};

Place place_of(const Positions& positions, int64_t p) {
  Place place;
  for (size_t i = positions.sizes.size(); i-- > 0;) {
    const int64_t at = p % positions.sizes[i];
    p /= positions.sizes[i];
    place.index += at * positions.index_strides[i];
    place.batch += at * positions.batch_strides[i];
    place.operand += at * positions.operand_strides[i];
  }
  return place;
}

// The operand's dimensions a window extends along (the others have size 1 and no counterpart).
std::vector<int64_t> window_dimensions(const Shape& operand, std::span<const int64_t> dropped,
                                       std::span<const int64_t> batching) {
  std::vector<int64_t> dims;
  for (int i = 0; i < operand.rank(); ++i) {
    if (!holds(dropped, i) && !holds(batching, i)) dims.push_back(i);
  }
  return dims;
}

// Component `index` of a position's index vector; huge for a u64 beyond int64.
int64_t component(const Literal& indices, int64_t index) {
  const int64_t value = indices.get_integer(index);
  return indices.shape().type() == ElementType::u64 && value < 0
             ? std::numeric_limits<int64_t>::max()
             : value;
}

}  // namespace

Result<Literal> evaluate_gather(Machine& machine, const Instruction& x, Operands operands) {
  const Literal& operand = operands[0];
  const Literal& indices = operands[1];
  HEDDLE_ASSIGN(Literal out, machine.result_of(x));
  if (out.element_count() == 0) return out;
  const auto batching = x.integers("operand_batching_dims");
  const Positions positions =
      positions_of(x, operand.shape(), indices.shape(), out.shape(), x.integers("offset_dims"),
                   batching, x.integers("start_indices_batching_dims"));
  HEDDLE_TRY(machine.spend(x, positions.count * Machine::kElementsPerValue));
  const auto window =
      window_dimensions(operand.shape(), x.integers("collapsed_slice_dims"), batching);
  const auto operand_strides = row_major_strides(operand.shape().dims());
  const auto out_strides = row_major_strides(out.shape().dims());
  const auto slice_sizes = x.integers("slice_sizes");
  const auto map = x.integers("start_index_map");
  std::vector<int64_t> dims;
  std::vector<int64_t> from;
  std::vector<int64_t> to;
  for (size_t i = 0; i < window.size(); ++i) {
    dims.push_back(slice_sizes[window[i]]);
    from.push_back(operand_strides[window[i]]);
    to.push_back(out_strides[x.integers("offset_dims")[i]]);
  }
  const int64_t size = size_of(out.shape().type());
  std::byte* const to_data = out.mutable_data();
  for (int64_t p = 0; p < positions.count; ++p) {
    const Place place = place_of(positions, p);
    int64_t start = place.operand;
    for (size_t k = 0; k < map.size(); ++k) {
      const auto dimension = static_cast<int>(map[k]);
      const int64_t wanted =
          component(indices, place.index + static_cast<int64_t>(k) * positions.component_stride);
      const int64_t room = operand.shape().dim(dimension) - slice_sizes[dimension];
      start += std::clamp<int64_t>(wanted, 0, room) * operand_strides[dimension];
    }
    strided_copy(size, dims, operand.data() + start * size, from, to_data + place.batch * size, to);
  }
  return out;
}

namespace {

struct Scatter {
  const Instruction& x;
  Positions positions;
  std::vector<int64_t> window_sizes;
  std::vector<int64_t> operand_strides;  // along the window
  std::vector<int64_t> update_strides;
};

// Calls f(operand element, update element) for every update whose window lies inside the operand.
template <class F>
Status for_each_update(const Scatter& scatter, const Shape& operand, const Literal& indices, F f) {
  const auto map = scatter.x.integers("scatter_dims_to_operand_dims");
  const auto strides = row_major_strides(operand.dims());
  const auto window = window_dimensions(operand, scatter.x.integers("inserted_window_dims"),
                                        scatter.x.integers("input_batching_dims"));
  std::vector<int64_t> extent(operand.rank(), 1);
  int64_t window_count = 1;
  for (size_t i = 0; i < window.size(); ++i) {
    extent[window[i]] = scatter.window_sizes[i];
    window_count *= scatter.window_sizes[i];
  }
  for (int64_t p = 0; p < scatter.positions.count; ++p) {
    const Place place = place_of(scatter.positions, p);
    int64_t start = place.operand;
    bool inside = true;
    for (size_t k = 0; k < map.size(); ++k) {
      const int64_t at = component(
          indices, place.index + static_cast<int64_t>(k) * scatter.positions.component_stride);
      inside = inside && at >= 0 && at <= operand.dim(static_cast<int>(map[k])) - extent[map[k]];
      start += inside ? at * strides[map[k]] : 0;
    }
    if (!inside) continue;
    for (int64_t w = 0; w < window_count; ++w) {
      int64_t rest = w;
      int64_t to = start;
      int64_t from = place.batch;
      for (size_t i = window.size(); i-- > 0;) {
        const int64_t at = rest % scatter.window_sizes[i];
        rest /= scatter.window_sizes[i];
        to += at * scatter.operand_strides[i];
        from += at * scatter.update_strides[i];
      }
      HEDDLE_TRY(f(to, from));
    }
  }
  return {};
}

template <class T>
T combine(Opcode opcode, T old, T update) {
  switch (opcode) {
    case Opcode::add:
      if constexpr (std::is_floating_point_v<T>) return old + update;
      return static_cast<T>(static_cast<uint64_t>(old) + static_cast<uint64_t>(update));
    case Opcode::multiply:
      if constexpr (std::is_floating_point_v<T>) return old * update;
      return static_cast<T>(static_cast<uint64_t>(old) * static_cast<uint64_t>(update));
    case Opcode::maximum:
      return is_nan(old) || old > update ? old : update;
    default:  // minimum
      return is_nan(old) || old < update ? old : update;
  }
}

bool combines_simply(Opcode opcode) {
  return opcode == Opcode::add || opcode == Opcode::multiply || opcode == Opcode::maximum ||
         opcode == Opcode::minimum;
}

}  // namespace

Result<Literal> evaluate_scatter(Machine& machine, const Instruction& x, Operands operands) {
  const size_t n = operands.size() / 2;
  const Shape operand_shape = operands[0].shape();
  const Literal indices = operands[n];
  const Shape updates_shape = operands[n + 1].shape();
  HEDDLE_TRY(machine.spend(x, updates_shape.element_count()));
  for (size_t i = 0; i < n; ++i) {  // updates may be of another floating type
    HEDDLE_ASSIGN(operands[n + 1 + i],
                  convert_to(operands[n + 1 + i], operands[i].shape().type(), machine.meter()));
  }
  // No window lies inside an empty operand.
  if (updates_shape.element_count() == 0 || operand_shape.element_count() == 0) {
    operands.resize(n);
    if (x.shape().is_tuple()) return Literal::tuple(std::move(operands));
    return std::move(operands[0]);
  }
  const auto batching = x.integers("input_batching_dims");
  const auto update_window = x.integers("update_window_dims");
  Scatter scatter{x,
                  positions_of(x, operand_shape, indices.shape(), updates_shape, update_window,
                               batching, x.integers("scatter_indices_batching_dims")),
                  {},
                  {},
                  {}};
  const auto window =
      window_dimensions(operand_shape, x.integers("inserted_window_dims"), batching);
  const auto strides = row_major_strides(operand_shape.dims());
  const auto update_strides = row_major_strides(updates_shape.dims());
  for (size_t i = 0; i < window.size(); ++i) {
    scatter.window_sizes.push_back(updates_shape.dim(static_cast<int>(update_window[i])));
    scatter.operand_strides.push_back(strides[window[i]]);
    scatter.update_strides.push_back(update_strides[update_window[i]]);
  }
  const Computation& combiner = *x.to_apply();
  const Opcode monoid = n == 1 ? monoid_of(combiner) : Opcode::unknown;
  if (combines_simply(monoid) && operand_shape.type() != ElementType::pred) {
    // Sums of many low-precision updates are kept in f32 until the end.
    const FloatStorage kept =
        machine.storage() == FloatStorage::own ? FloatStorage::wide : machine.storage();
    HEDDLE_ASSIGN(Literal total, to_storage(std::move(operands[0]), kept, machine.meter()));
    HEDDLE_ASSIGN(const Literal updates, to_storage(operands[2], kept, machine.meter()));
    Status status;
    const bool known = with_type(total.shape().type(), [&]<class Codec>() {
      using Stored = typename Codec::Stored;
      Stored* to = total.mutable_as<Stored>();
      const Stored* from = updates.as<Stored>();
      status = for_each_update(scatter, operand_shape, indices, [&](int64_t at, int64_t update) {
        to[at] = Codec::store(combine(monoid, Codec::load(to[at]), Codec::load(from[update])));
        return Status();
      });
    });
    if (!known) return refuse(x, fmt::format("of {} is not known", name(total.shape().type())));
    HEDDLE_TRY(status);
    return convert_to(total, machine.storage_type(x.shape().type()), machine.meter());
  }
  Operands totals;
  for (size_t i = 0; i < n; ++i) totals.push_back(std::move(operands[i]));
  HEDDLE_TRY(
      for_each_update(scatter, operand_shape, indices, [&](int64_t at, int64_t update) -> Status {
        HEDDLE_TRY(machine.spend(x, Machine::kElementsPerValue * x.operand_count()));
        Operands arguments;
        for (const Literal& total : totals) arguments.push_back(scalar_at(total, at));
        for (size_t i = 0; i < n; ++i) {
          arguments.push_back(scalar_at(operands[n + 1 + i], update));
        }
        HEDDLE_ASSIGN(Literal value, machine.run(combiner, std::move(arguments)));
        for (size_t i = 0; i < n; ++i) {
          const Literal& part = value.shape().is_tuple() ? value.elements()[i] : value;
          std::copy(part.data(), part.data() + part.byte_count(),
                    totals[i].mutable_data() + at * part.byte_count());
        }
        return {};
      }));
  if (x.shape().is_tuple()) return Literal::tuple(std::move(totals));
  return std::move(totals[0]);
}

}  // namespace heddle::hlo
