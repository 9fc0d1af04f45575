// heddle fuse: an HLO text module in, the same program with its attention fused out.
#include <fmt/format.h>

#include <optional>
#include <string>

#include "hlo/write.h"
#include "tools/command.h"
#include "tools/fused_module.h"
#include "tools/input_file.h"
#include "tools/picture.h"
#include "tools/report.h"
#include "tools/verify.h"

namespace heddle::tools {
namespace {

struct FuseOptions {
  std::string path, output, report, picture;
  engine::Device device = engine::Device::cpu;
  bool verify = false;
  uint64_t seed = 0;
};

/// The first output that is farther from f64 than it may be, in words.
std::string worst(const Verification& verification) {
  for (size_t i = 0; i < verification.outputs.size(); ++i) {
    const OutputError& output = verification.outputs[i];
    if (!output.ok)
      return fmt::format(
          "output {} ({}) is {:.2e} from its f64 value, and {:.2e} is allowed: the original is "
          "{:.2e} away",
          i, output.shape, output.fused, output.allowed, output.original);
  }
  return "";
}

Result<ExitStatus> fuse(const FuseOptions& options) {
  if (options.output == "-" && options.report == "-")
    return error(Code::invalid_value, "-o - and --report - both write to standard output; one may");
  HEDDLE_ASSIGN(const std::string text, read_text_file(options.path, kMostModuleBytes));
  HEDDLE_ASSIGN(const FusedModule module, fuse_text(text, options.path, options.device));
  std::optional<Verification> verification;
  if (options.verify) {
    HEDDLE_ASSIGN(verification, verify(*module.original, *module.fused, options.seed));
  }
  // A module that failed its verification is not left behind.
  const bool trusted = !verification || verification->ok;
  if (!options.output.empty() && trusted)
    HEDDLE_TRY(write_text(hlo::write_text(*module.fused), options.output));
  if (!options.report.empty())
    HEDDLE_TRY(write_text(to_json(module.report, verification), options.report));
  if (!options.picture.empty()) {
    HEDDLE_ASSIGN(const std::string drawing, before_and_after(module));
    HEDDLE_TRY(write_picture(drawing, options.picture));
  }
  if (options.output.empty() && options.report.empty()) fmt::print("{}", to_people(module.report));
  if (!trusted) {
    fmt::print(stderr, "heddle: {}: verification failed: {}\n", options.path, worst(*verification));
    return kVerificationFailed;
  }
  return kDone;
}

}  // namespace

void add_fuse(CLI::App& app, int& status) {
  CLI::App* command =
      app.add_subcommand("fuse",
                         "Reads an HLO text module, lets fused calls compute its attention, "
                         "forward and backward, and writes\n"
                         "HLO text that XLA parses. What cannot be proved to stay the same is left "
                         "alone, with the reason.\n\n"
                         "  heddle fuse model.hlo -o fused.hlo --report report.json\n"
                         "  heddle fuse model.hlo --verify --picture layer.svg");
  auto options = std::make_shared<FuseOptions>();
  command
      ->add_option("module", options->path, text_file_help("The HLO text module", kMostModuleBytes))
      ->required();
  add_device(*command, options->device);
  command->add_option("-o,--output", options->output,
                      "Where to write the rewritten module; - for standard output");
  command->add_option("--report", options->report,
                      "Where to write the report (JSON); - for standard output");
  command->add_flag(
      "--verify", options->verify,
      "Evaluate both modules on the same random inputs: every output's error against an f64\n"
      "evaluation may be at most twice the original's own");
  command->add_option("--seed", options->seed, "Seed of those inputs");
  command->add_option("--picture", options->picture,
                      "Draw every changed computation before and after (.svg, .png, .pdf, .dot)");
  command->callback([options, &status] {
    const Result<ExitStatus> ended = fuse(*options);
    status = ended ? *ended : complain(ended.status());
  });
}

}  // namespace heddle::tools
