// The `heddle` command.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "tools/command.h"

namespace {

/// Why no subcommand was found: CLI11 says that there must be one, not which word is none.
std::string no_subcommand(const CLI::App* app, const CLI::Error& failure) {
  const CLI::App* group = app;
  while (!group->get_subcommands().empty()) group = group->get_subcommands().front();
  const std::vector<std::string> words = group->remaining();
  const std::vector<const CLI::App*> known = group->get_subcommands({});
  if (failure.get_name() != "RequiredError" || words.empty() || known.empty())
    return CLI::FailureMessage::simple(app, failure);
  std::string names;
  for (const CLI::App* one : known) names += (names.empty() ? "" : ", ") + one->get_name();
  return "heddle: there is no subcommand '" + words.front() + "', expected one of " + names + "\n";
}

/// What was printed reaches the disk or the pipe here at the latest.
int flushed(int status) {
  using namespace heddle;
  errno = 0;
  const bool is_whole = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_whole || status != tools::kDone) return status;
  return tools::complain(error(Code::io_failed, "standard output cannot be written{}{}",
                               errno == 0 ? "" : ": ", errno == 0 ? "" : std::strerror(errno)));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace heddle::tools;
  CLI::App app{
      "Finds attention in a program and runs it as one fused kernel.\n\n"
      "  heddle explain model.hlo                       what would be fused, and what not, and "
      "why\n"
      "  heddle explain model.onnx                      which attention is served by which path\n"
      "  heddle fuse model.hlo -o fused.hlo --verify    rewrite it, and check that it computes the "
      "same\n"
      "  heddle run graph.json                          run a graph, against its definition\n"
      "  heddle doctor                                  what this machine has\n"
      "  heddle bench cpu                               how fast this machine is\n"
      "  heddle profile gqa                             what a step of decoding spends its time "
      "on\n\n"
      "Ends with 0 when done, 2 on bad input or usage, 3 when verification failed."};
  app.name("heddle");
  app.set_version_flag("--version", HEDDLE_VERSION);
  app.require_subcommand(1);
  app.failure_message(no_subcommand);
  int status = kDone;
  add_fuse(app, status);
  add_explain(app, status);
  add_run(app, status);
  add_bench(app, status);
  add_profile(app, status);
  add_doctor(app, status);
  add_cache(app, status);
  add_prebuild(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& ending) {  // also how CLI11 ends --help and --version
    status = app.exit(ending) == 0 ? kDone : kBadInput;
  } catch (const std::bad_alloc&) {
    status = complain(heddle::error(heddle::Code::out_of_memory, "there was not enough memory"));
  } catch (const std::exception& failure) {  // a full disk behind standard output
    status = complain(heddle::error(heddle::Code::io_failed, "{}", failure.what()));
  }
  return flushed(status);
}
