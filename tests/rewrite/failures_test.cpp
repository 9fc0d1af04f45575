// What fails inside of the rewriter is not the program's: the module stays as it was, and the
// report says why.
#include <new>
#include <stdexcept>

#include "rewrite/programs.h"
#include "rewrite/report.h"

namespace heddle::testing {
namespace {

using Workspace = std::function<Result<int64_t>(const graph::Graph&)>;

/// Rewrites a gradient with an engine that does `fail` when it is asked for the `nth` time.
rewrite::Report rewritten_but(const Workspace& fail, int nth) {
  const std::string text = small_program("grad_causal_kv4");
  std::unique_ptr<hlo::Module> module = parsed(text);
  const hlo::Module* const given = module.get();
  rewrite::Options options;
  options.workspace_bytes = [&, asked = 0](const graph::Graph& graph) mutable -> Result<int64_t> {
    return ++asked == nth ? fail(graph) : Result<int64_t>(int64_t{64});
  };
  rewrite::Report report = rewrite::rewrite(module, options);
  std::string difference;
  if (report.fusions.empty()) {
    EXPECT_EQ(module.get(), given);
    EXPECT_TRUE(hlo::equal(*module, *parsed(text), &difference)) << difference;
  }
  EXPECT_TRUE(module->verify().is_ok());
  return report;
}

TEST(Failures, WhatIsThrownIsARecord) {
  const Workspace out_of_memory = [](const graph::Graph&) -> Result<int64_t> {
    throw std::bad_alloc();
  };
  const Workspace fault = [](const graph::Graph&) -> Result<int64_t> {
    throw std::out_of_range("a map has no such key");
  };
  for (int nth = 1; nth <= 2; ++nth) {
    const rewrite::Report none = rewritten_but(out_of_memory, nth);
    EXPECT_EQ(none.failure, "there is not enough memory to rewrite it");
    const rewrite::Report report = rewritten_but(fault, nth);
    EXPECT_TRUE(report.fusions.empty());
    EXPECT_EQ(report.failure, "the rewriter failed: a map has no such key");
    ASSERT_FALSE(report.refusals.empty());
    EXPECT_EQ(report.refusals.back().reason,
              "nothing of the module is fused: the rewriter failed: a map has no such key");
    EXPECT_NE(rewrite::to_json(report).find("\"failure\": \"the rewriter failed"),
              std::string::npos);
    EXPECT_GT(report.instructions, 0);
    EXPECT_FALSE(report.module.empty());
  }
}

TEST(Failures, AnEnginesRefusalIsNone) {
  const Workspace refusal = [](const graph::Graph&) -> Result<int64_t> {
    return error(Code::graph_not_supported, "not on a Monday");
  };
  for (int nth = 1; nth <= 2; ++nth) {
    const rewrite::Report report = rewritten_but(refusal, nth);
    EXPECT_EQ(report.failure, "");
    EXPECT_EQ(rewrite::to_json(report).find("\"failure\""), std::string::npos);
    ASSERT_FALSE(report.refusals.empty());
    EXPECT_EQ(report.refusals.back().reason, "not on a Monday");
  }
}

}  // namespace
}  // namespace heddle::testing
