#include "engine/cuda/unit_summary.h"

#include <cctype>
#include <map>
#include <string_view>

namespace heddle::engine::cuda {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// The constants and types a source names, by name: of `kDropout = attention::Dropout::philox` the
/// last word. The first of a name is kept: the forward's score stands before its derivative.
std::map<std::string, std::string> names_in(std::string_view source) {
  std::map<std::string, std::string> names;
  constexpr std::string_view kIs = " = ";
  for (size_t at = source.find(kIs); at != source.npos; at = source.find(kIs, at + 1)) {
    size_t begin = at;
    while (begin > 0 && is_word(source[begin - 1])) --begin;
    const size_t start = at + kIs.size();
    size_t end = start;
    while (end < source.size() && (is_word(source[end]) || source[end] == ':')) ++end;
    std::string_view value = source.substr(start, end - start);
    if (const size_t scope = value.rfind(':'); scope != value.npos) value.remove_prefix(scope + 1);
    names.try_emplace(std::string(source.substr(begin, at - begin)), value);
  }
  return names;
}

std::string type_name(const std::string& device_type) {
  if (device_type == "float") return "f32";
  if (device_type == "double") return "f64";
  return device_type;
}

// Flags of the configurations in kernels/, in the order in which they are said.
struct Flag {
  const char *name, *words;
};
constexpr Flag kFlags[] = {
    {"kUpperVaries", "causal"},
    {"kLowerVaries", "window"},
    {"kLengths", "lengths"},
    {"kPagedK", "paged K"},
    {"kPagedV", "paged V"},
    {"kBlockMask", "block mask"},
    {"kSink", "sink"},
    {"kRowMax", "row maximum"},
    {"kMaxAndSum", "maximum and sum"},
    {"kInputIsLog2", "base 2"},
    {"kDeterministic", "deterministic"},
    {"kWantDk", "dK"},
    {"kWantDv", "dV"},
    {"kBias", "bias"},
    {"kDx", "dX"},
    {"kDWeight", "dWeight"},
    {"kDBias", "dBias"},
    {"kInterleaved", "interleaved"},
    {"kTables", "tables"},
    {"kPositions", "positions"},
    {"kRagged", "ragged"},
    {"kInverse", "backward"},
};

}  // namespace

UnitSummary summary_of_unit(const std::string& source) {
  const std::map<std::string, std::string> names = names_in(source);
  const auto value = [&](const char* name) {
    const auto at = names.find(name);
    return at == names.end() ? std::string() : at->second;
  };
  UnitSummary summary;
  const auto add = [&summary](const std::string& feature) {
    summary.features += (summary.features.empty() ? "" : ", ") + feature;
  };
  summary.dtype = type_name(value(names.contains("X") ? "X" : "Element"));
  // Hopper multiplies an f32 as a pair of f16.
  if (value("kPlanes") == "2") summary.dtype = "f32";
  summary.head_dim = value("kQkDim");
  if (const std::string v = value("kVDim"); v != summary.head_dim) summary.head_dim += "/" + v;
  for (const auto& [type, words] : {std::pair{"W", "weight"}, {"Y", "y"}, {"Dy", "dY"}}) {
    const std::string other = type_name(value(type));
    if (!other.empty() && other != summary.dtype) add(std::string(words) + " " + other);
  }
  for (const Flag& flag : kFlags)
    if (value(flag.name) == "true") add(flag.words);
  if (value("kIdentity") == "false") add("score expression");
  if (const std::string kind = value("kDropout"); !kind.empty() && kind != "none")
    add("dropout " + kind);
  if (const std::string dims = value("kRopeDim"); !dims.empty() && dims != "0")
    add("rope " + dims + " " + value("kRopePairing"));
  return summary;
}

}  // namespace heddle::engine::cuda
