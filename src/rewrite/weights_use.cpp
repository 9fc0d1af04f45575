#include "rewrite/weights_use.h"

#include <fmt/format.h>

#include <unordered_set>
#include <vector>

#include "hlo/source.h"

namespace heddle::rewrite {

using hlo::Instruction;

namespace {

// The sums of a row come back to its weights within a few steps.
constexpr int kSteps = 6;
// What is looked through for the sentence's sake.
constexpr size_t kMostSeen = 256, kMostAtOnce = 64;

class Search {
 public:
  Search(const Instruction& weights, const Liveness& liveness, const Liveness::Replaced& replaced)
      : weights_(weights), liveness_(liveness), replaced_(replaced) {}

  const Instruction& run() {
    std::vector<const Instruction*> work{&weights_};
    std::unordered_set<const Instruction*> seen{&weights_};
    while (!work.empty() && seen.size() < kMostSeen) {
      const Instruction* x = work.back();
      work.pop_back();
      if (x->is_root()) note(x);
      for (const Instruction* user : users(x)) {
        if (!seen.insert(user).second) continue;
        if (is_as_large(user)) {
          work.push_back(user);
        } else if (!user->shape().is_array()) {
          note(x);  // a result of the program, or of a loop
        } else if (!comes_back(user)) {
          note(user);
        }
      }
    }
    if (found_) return *found_;
    const std::vector<const Instruction*> first = users(&weights_);
    return first.empty() ? weights_ : *first[0];
  }

 private:
  bool is_as_large(const Instruction* x) const {
    return x->shape().is_array() && x->shape().element_count() >= weights_.shape().element_count();
  }

  std::vector<const Instruction*> users(const Instruction* x) const {
    std::vector<const Instruction*> users;
    for (const Instruction* user : x->users())
      if (liveness_.is_live(user) && !replaced_.contains(user)) users.push_back(user);
    return users;
  }

  /// Whether something as large as the weights is made of `x` again.
  bool comes_back(const Instruction* x) const {
    std::vector<const Instruction*> here{x};
    for (int step = 0; step < kSteps; ++step) {
      std::vector<const Instruction*> next;
      for (const Instruction* y : here)
        for (const Instruction* user : users(y)) {
          if (is_as_large(user)) return true;
          if (next.size() < kMostAtOnce) next.push_back(user);
        }
      here = std::move(next);
    }
    return false;
  }

  void note(const Instruction* x) {
    if (!found_ || x->position() < found_->position()) found_ = x;
  }

  const Instruction& weights_;
  const Liveness& liveness_;
  const Liveness::Replaced& replaced_;
  const Instruction* found_ = nullptr;
};

}  // namespace

std::string what_needs(const Instruction& weights, const Liveness& liveness,
                       const Liveness::Replaced& replaced) {
  const Instruction& x = Search(weights, liveness, replaced).run();
  const hlo::Source source = hlo::source_of(x);
  return source.file.empty() ? "%" + x.name()
                             : fmt::format("%{}, {}:{}", x.name(), source.file, source.line);
}

}  // namespace heddle::rewrite
