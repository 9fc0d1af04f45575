// heddle fuse: an HLO text module in, the same program with its attention fused out.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

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
  std::vector<std::string> inputs;  // NAME=FILE.npy or NUMBER=FILE.npy
  engine::Device device = engine::Device::cpu;
  bool verify = false;
  uint64_t seed = 0;
};

Result<ExitStatus> fuse(const FuseOptions& options) {
  if (options.output == "-" && options.report == "-")
    return error(Code::invalid_value, "-o - and --report - both write to standard output; one may");
  if (!options.inputs.empty() && !options.verify)
    return error(Code::invalid_value, "--input is given without --verify, which it is for");
  HEDDLE_ASSIGN(const std::string text, read_text_file(options.path, kMostModuleBytes));
  HEDDLE_ASSIGN(const FusedModule module,
                fuse_text(text, options.path, engine::engines(options.device)));
  std::optional<Verification> verification;
  if (options.verify) {
    HEDDLE_ASSIGN(const std::vector<GivenInput> inputs,
                  read_inputs(*module.original, options.inputs));
    HEDDLE_ASSIGN(verification, verify(*module.original, *module.fused, options.seed, inputs));
  }
  // A module that failed its verification is not left behind.
  const bool trusted = !verification || verification->ok();
  if (!options.output.empty() && trusted)
    HEDDLE_TRY(write_text(hlo::write_text(*module.fused), options.output));
  if (!options.report.empty())
    HEDDLE_TRY(write_text(to_json(module.report, verification), options.report));
  if (!options.picture.empty()) {
    HEDDLE_ASSIGN(const std::string drawing, before_and_after(module));
    HEDDLE_TRY(write_picture(drawing, options.picture));
  }
  if (options.output.empty() && options.report.empty())
    fmt::print("{}{}", to_people(module.report), verification ? to_people(*verification) : "");
  if (!trusted) {
    fmt::print(stderr, "heddle: {}: verification failed: {}\n", options.path,
               verification->complaint);
    return kVerificationFailed;
  }
  return kDone;
}

}  // namespace

void add_fuse(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "fuse",
      "Reads an HLO text module, lets fused calls compute its attention, "
      "forward and backward, and writes\n"
      "HLO text that XLA parses. What cannot be proved to stay the same is left "
      "alone, with the reason.\n\n"
      "  heddle fuse model.hlo -o fused.hlo --report report.json\n"
      "  heddle fuse model.hlo --verify --picture layer.svg\n"
      "  heddle fuse model.hlo --verify --input tokens=batch.npy --input 3=mask.npy\n\n"
      "--verify judges every output, and every row of it, on four draws of inputs:\n"
      "  ordinary  padding at the ends, each batch entry with positions and lengths of its own\n"
      "  hidden    rows, entries and heads hidden whole, left padding, biases of -inf and -1e9\n"
      "  large     scores of size 1e3\n"
      "  small     activations a tenth as large, masks turned round, short lengths\n"
      "What the program uses a parameter for decides what it is given: masks are 0 and 1,\n"
      "indices stay within what they index. The rewritten module may be twice as far from f64\n"
      "as the original is, and must be finite where that is. Where a huge finite number makes\n"
      "the program mean something else in its own precision than in f64, the rewritten module\n"
      "must agree with the program. Rows whose scores are all -inf, which are NaN in the program\n"
      "and 0 in a call, are counted and named.");
  auto options = std::make_shared<FuseOptions>();
  command
      ->add_option("module", options->path, text_file_help("The HLO text module", kMostModuleBytes))
      ->required();
  add_device(*command, options->device);
  add_file(*command, "-o,--output", options->output,
           "Where to write the rewritten module; - for standard output");
  add_file(*command, "--report", options->report,
           "Where to write the report (JSON); - for standard output");
  command->add_flag(
      "--verify", options->verify,
      "Evaluate both modules on the same random inputs: the error of every output and of each of\n"
      "its rows against an f64 evaluation may be at most twice the original's own");
  command->add_option(
      "--input", options->inputs,
      fmt::format("NAME=FILE.npy or NUMBER=FILE.npy, of at most {} GiB: a parameter "
                  "by its name or number;\nthe others are random",
                  kMostArrayBytes >> 30));
  add_seed(*command, options->seed, "Seed of the random inputs (0)");
  add_file(*command, "--picture", options->picture,
           "Draw what changed in every computation, before and after (.svg, .png, .pdf, .dot)");
  command->callback([options, &status] {
    const Result<ExitStatus> ended = fuse(*options);
    status = ended ? *ended : complain(ended.status());
  });
}

}  // namespace heddle::tools
