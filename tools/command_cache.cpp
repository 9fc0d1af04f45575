// heddle cache: the compiled CUDA kernels kept on disk.
#include <fmt/format.h>

#include <ctime>
#include <limits>
#include <optional>
#include <string>

#include "engine/cuda/kernel_cache.h"
#include "tools/command.h"
#include "tools/table.h"

namespace heddle::tools {
namespace {

using engine::cuda::KernelCache;

Result<KernelCache> cache() {
  const std::filesystem::path root = KernelCache::default_root();
  if (root.empty())
    return error(
        Code::io_failed,
        "there is no kernel cache: HEDDLE_CACHE_DIR is set to nothing, or no home is known");
  std::error_code failure;
  const std::filesystem::directory_iterator readable(root, failure);
  if (failure && failure != std::errc::no_such_file_or_directory)
    return error(Code::io_failed, "{} cannot be read: {}", root.string(), failure.message());
  return KernelCache(root);
}

/// A folder of a mistyped name holds no kernels either.
std::string remark_on(const KernelCache& kernels) {
  std::error_code ignored;
  return std::filesystem::exists(kernels.root(), ignored)
             ? ""
             : fmt::format("{} is not there\n", kernels.root().string());
}

/// How long ago, in the largest unit that goes into it twice.
std::string age(int64_t seconds) {
  if (seconds < 120) return "now";
  if (seconds < 2 * 3600) return fmt::format("{} min ago", seconds / 60);
  if (seconds < 2 * 86400) return fmt::format("{} h ago", seconds / 3600);
  return fmt::format("{} days ago", seconds / 86400);
}

Status list() {
  HEDDLE_ASSIGN(const KernelCache kernels, cache());
  if (const std::string remark = remark_on(kernels); !remark.empty()) {
    fmt::print("{}", remark);
    return {};
  }
  std::vector<std::vector<std::string>> rows = {
      {"kernel", "for", "dtype", "head dim", "bytes", "used", "key", "features"}};
  size_t outdated = 0;
  for (const KernelCache::Entry& entry : kernels.list()) {
    outdated += entry.words.outdated ? 1 : 0;
    const bool damaged = entry.words.name.empty();
    rows.push_back({damaged ? "(damaged)" : entry.words.name, entry.words.architecture,
                    entry.words.made_for.dtype, entry.words.made_for.head_dim,
                    fmt::format("{}", entry.bytes),
                    damaged ? "" : age(::time(nullptr) - entry.last_used), entry.digest,
                    entry.words.made_for.features});
  }
  fmt::print("{}\n{}", kernels.root().string(), table(rows));
  if (outdated > 0) {
    fmt::print("{} of another version of Heddle, which this one does not use\n",
               counted(outdated, "kernel"));
  }
  return Status();
}

Status prune(std::optional<int64_t> bytes) {
  HEDDLE_ASSIGN(const KernelCache kernels, cache());
  if (!bytes) {
    HEDDLE_ASSIGN(bytes, engine::cuda::cache_limit_bytes());
  }
  HEDDLE_ASSIGN(const int64_t removed, kernels.prune(*bytes));
  fmt::print("{}{} removed\n", remark_on(kernels), counted(static_cast<size_t>(removed), "kernel"));
  return Status();
}

Status clear() {
  HEDDLE_ASSIGN(const KernelCache kernels, cache());
  HEDDLE_ASSIGN(const int64_t removed, kernels.clear());
  fmt::print("{}{} removed\n", remark_on(kernels), counted(static_cast<size_t>(removed), "kernel"));
  return Status();
}

}  // namespace

void add_cache(CLI::App& app, int& status) {
  CLI::App* command =
      app.add_subcommand("cache",
                         "Lists, prunes or clears the compiled CUDA kernels kept on disk.\n\n"
                         "  heddle cache list\n"
                         "  heddle cache prune --bytes 100000000");
  command->require_subcommand(1);
  const auto end = [&status](const Status& ended) {
    status = ended.is_ok() ? kDone : complain(ended);
  };
  command->add_subcommand("list", "Kernels, most recently used first")->callback([end] {
    end(list());
  });
  command->add_subcommand("clear", "Removes every kernel")->callback([end] { end(clear()); });
  auto bytes = std::make_shared<std::optional<int64_t>>();
  CLI::App* pruning = command->add_subcommand(
      "prune", "Removes the least recently used kernels until at most --bytes remain");
  pruning->add_option("--bytes", *bytes, "Bytes to keep; else HEDDLE_CACHE_BYTES, else 1 GiB")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()));
  pruning->callback([end, bytes] { end(prune(*bytes)); });
}

}  // namespace heddle::tools
