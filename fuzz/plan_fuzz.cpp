// Any text given to the C interface as a graph becomes a plan or a sentence, and a small plan runs
// in memory of exactly the bytes it says: under a sanitizer nothing lies outside of these. Inputs
// and what a refused execution was given stay as they were; a second execution has the same bits.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "heddle/heddle.h"

namespace {

// A tensor of few bytes may have many elements, by strides of 0: what takes long is none of this.
constexpr size_t kMostBytes = 1 << 16, kMostWorkspace = 1 << 26;
constexpr double kMostElements = 1 << 12;

struct FreePlan {
  void operator()(heddle_plan* plan) const { heddle_plan_free(plan); }
};
struct FreeGraph {
  void operator()(heddle_graph* graph) const { heddle_graph_free(graph); }
};
using PlanPtr = std::unique_ptr<heddle_plan, FreePlan>;
using GraphPtr = std::unique_ptr<heddle_graph, FreeGraph>;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s\n", what, heddle_last_error());
  std::abort();
}

/// Every failure has its sentence.
bool is_ok(heddle_status status) {
  require(status == HEDDLE_OK || *heddle_last_error() != 0, "a failure without a sentence");
  return status == HEDDLE_OK;
}

/// A plan's tensors in memory of their own, each of as many bytes as it takes.
class Bindings {
 public:
  Bindings(const heddle_plan* plan, std::mt19937_64& random) : plan_(plan), random_(random) {
    add(heddle_plan_inputs, true);
    add(heddle_plan_outputs, false);
  }
  Bindings(const Bindings& other) = default;

  /// False of what is too large to be run here.
  bool allocate() {
    for (const int64_t uid : uids_) {
      const heddle_tensor tensor = describe(uid);
      double elements = 1;
      for (int32_t d = 0; d < tensor.rank; ++d) elements *= static_cast<double>(tensor.dims[d]);
      if (elements > kMostElements) return false;
      if (tensor.ragged_offset == 0) continue;
      int64_t& apart = entry_elements_[tensor.ragged_offset];
      apart = std::max(apart, elements_of_entry(tensor));
      if (apart > static_cast<int64_t>(kMostBytes)) return false;
    }
    for (const bool packed : {false, true}) {
      for (const int64_t uid : uids_) {
        const heddle_tensor tensor = describe(uid);
        if ((tensor.ragged_offset != 0) != packed) continue;
        const std::vector<void*> known = pointers();
        size_t bytes = 0;
        if (!is_ok(heddle_plan_tensor_bytes(plan_, uid, uids_.data(), known.data(), known.size(),
                                            &bytes)) ||
            bytes > kMostBytes)
          return false;
        fill(tensor, memory_[uid] = std::vector<uint8_t>(bytes));
      }
    }
    return true;
  }

  heddle_status execute(void* workspace, const std::vector<heddle_shape>& shapes) {
    std::vector<void*> given = pointers();
    return heddle_plan_execute(plan_, uids_.data(), given.data(), given.size(), shapes.data(),
                               shapes.size(), workspace, nullptr);
  }
  /// The same with pointers or uids that are not what they should be.
  heddle_status execute_wrongly(void* workspace) {
    std::vector<void*> given = pointers();
    std::vector<int64_t> uids = uids_;
    const size_t one = random_() % given.size();
    const size_t other = random_() % given.size();
    switch (random_() % 5) {
      case 0:
        given[one] = nullptr;
        break;
      case 1:
        uids[one] = static_cast<int64_t>(random_());
        break;
      case 2:
        // An output on top of another tensor; other lengths or offsets would be another program.
        if (one >= inputs_.size() && memory_[uids_[one]].size() <= memory_[uids_[other]].size())
          given[one] = given[other];
        break;
      case 3:
        workspace = nullptr;
        break;
      default:
        given.pop_back();
        break;
    }
    return heddle_plan_execute(plan_, uids.data(), given.data(), given.size(), nullptr, 0,
                               workspace, nullptr);
  }

  /// Dims of some tensors, most no larger than the plan's.
  std::vector<heddle_shape> shapes() {
    std::vector<heddle_shape> shapes;
    for (const int64_t uid : uids_) {
      if (random_() % 2 == 0) continue;
      const heddle_tensor tensor = describe(uid);
      heddle_shape shape{};
      shape.uid = uid, shape.rank = tensor.rank;
      for (int32_t d = 0; d < tensor.rank; ++d) {
        shape.dims[d] = tensor.dims[d];
        if (random_() % 4 == 0 && tensor.dims[d] > 0)
          shape.dims[d] = static_cast<int64_t>(random_() % static_cast<uint64_t>(tensor.dims[d]));
        if (random_() % 32 == 0) shape.dims[d] = odd_number();
      }
      if (random_() % 64 == 0) shape.rank = static_cast<int32_t>(random_());
      shapes.push_back(shape);
    }
    return shapes;
  }

  bool inputs_are_those_of(const Bindings& other) const {
    return std::all_of(inputs_.begin(), inputs_.end(),
                       [&](int64_t uid) { return memory_.at(uid) == other.memory_.at(uid); });
  }
  bool is_all_that_of(const Bindings& other) const { return memory_ == other.memory_; }

 private:
  template <class List>
  void add(List list, bool are_inputs) {
    const int64_t* uids = nullptr;
    size_t count = 0;
    require(is_ok(list(plan_, &uids, &count)), "no uids");
    uids_.insert(uids_.end(), uids, uids + count);
    if (are_inputs) inputs_.assign(uids, uids + count);
  }
  heddle_tensor describe(int64_t uid) const {
    heddle_tensor tensor;
    require(is_ok(heddle_plan_tensor(plan_, uid, &tensor)), "no such tensor");
    return tensor;
  }
  /// In the order of uids_; null where there is none yet.
  std::vector<void*> pointers() {
    std::vector<void*> pointers;
    for (const int64_t uid : uids_) {
      const auto found = memory_.find(uid);
      // A tensor of no bytes has an address too.
      static int64_t nothing[2];
      pointers.push_back(found == memory_.end()  ? nullptr
                         : found->second.empty() ? static_cast<void*>(nothing)
                                                 : found->second.data());
    }
    return pointers;
  }
  int64_t odd_number() {
    static constexpr int64_t kNumbers[] = {-1,
                                           0,
                                           int64_t{1} << 31,
                                           int64_t{1} << 62,
                                           std::numeric_limits<int64_t>::max(),
                                           std::numeric_limits<int64_t>::min()};
    return kNumbers[random_() % std::size(kNumbers)];
  }
  /// Elements that an entry of a packed tensor reaches over; many if they cannot be counted.
  static int64_t elements_of_entry(const heddle_tensor& tensor) {
    double elements = 1;
    for (int32_t d = 1; d < tensor.rank; ++d)
      elements += static_cast<double>(tensor.dims[d] - 1) * static_cast<double>(tensor.strides[d]);
    return elements < 0x1p40 ? static_cast<int64_t>(elements) : int64_t{1} << 40;
  }
  void fill(const heddle_tensor& tensor, std::vector<uint8_t>& memory) {
    const auto put = [&](auto type) {
      using T = decltype(type);
      for (size_t i = 0; i + sizeof(T) <= memory.size(); i += sizeof(T)) {
        int64_t value = random_() % 8 == 0 ? odd_number() : static_cast<int64_t>(random_() % 9);
        // Offsets of packed tensors are as good as addresses: an entry lies behind the other.
        if (const auto found = entry_elements_.find(tensor.uid); found != entry_elements_.end())
          value = static_cast<int64_t>(i / sizeof(T)) * found->second;
        const auto number = static_cast<T>(value);
        std::memcpy(memory.data() + i, &number, sizeof number);
      }
    };
    if (tensor.dtype == HEDDLE_I64 || tensor.dtype == HEDDLE_U64) return put(int64_t{});
    if (tensor.dtype == HEDDLE_I32 || tensor.dtype == HEDDLE_U32) return put(int32_t{});
    for (uint8_t& byte : memory)
      byte = static_cast<uint8_t>(tensor.dtype == HEDDLE_BOOLEAN ? random_() % 2 : random_());
  }

  const heddle_plan* plan_;
  std::mt19937_64& random_;
  std::vector<int64_t> uids_, inputs_;
  std::map<int64_t, int64_t> entry_elements_;  ///< by the uid of the offsets
  std::map<int64_t, std::vector<uint8_t>> memory_;
};

void run(const heddle_plan* plan, std::mt19937_64& random) {
  const size_t workspace_bytes = heddle_plan_workspace_bytes(plan);
  if (workspace_bytes > kMostWorkspace) return;
  Bindings drawn(plan, random);
  if (!drawn.allocate()) return;
  const auto workspace = std::make_unique<uint8_t[]>(workspace_bytes + 1);

  Bindings first = drawn, second = drawn;
  if (is_ok(first.execute(workspace.get(), {}))) {
    require(first.inputs_are_those_of(drawn), "an input was written");
    require(is_ok(second.execute(workspace.get(), {})), "a second execution failed");
    require(second.is_all_that_of(first), "a second execution has other bits");
  } else {
    require(first.is_all_that_of(drawn), "what was refused has written");
  }
  Bindings late = drawn;
  const std::vector<heddle_shape> shapes = late.shapes();
  const bool executed = is_ok(late.execute(workspace.get(), shapes));
  require(executed ? late.inputs_are_those_of(drawn) : late.is_all_that_of(drawn),
          "late sizes have written");
  Bindings wrong = drawn;
  if (!is_ok(wrong.execute_wrongly(workspace.get())))
    require(wrong.is_all_that_of(drawn), "what was bound wrongly has written");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::mt19937_64 random(std::hash<std::string_view>()(text));
  heddle_graph* parsed = nullptr;
  if (!is_ok(heddle_graph_parse(text.data(), text.size(), &parsed))) return 0;
  const GraphPtr graph(parsed);
  heddle_plan* made = nullptr;
  if (!is_ok(heddle_plan_create(graph.get(), HEDDLE_CPU, &made))) return 0;
  const PlanPtr plan(made);
  require(*heddle_plan_description(plan.get()) != 0, "a plan without a description");
  run(plan.get(), random);
  return 0;
}
