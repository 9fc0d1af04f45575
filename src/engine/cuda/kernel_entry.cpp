#include "engine/cuda/kernel_entry.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "engine/cuda/kernel_sources.h"

namespace heddle::engine::cuda {
namespace {

// Raise when the meaning of an entry's text changes.
constexpr int kFormat = 1;
constexpr std::string_view kHeadersLine = "headers ", kArchitectureFlag = "--gpu-architecture=";

std::string text_at(const nlohmann::json& object, const char* name) {
  if (!object.is_object()) return {};
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// Over all of the device code: it took most of the time of a plan whose kernels are compiled.
uint64_t sources_digest() {
  static const uint64_t kDigest = kernel_sources_digest();
  return kDigest;
}

/// Nothing of a text that a terminal might not print.
std::string printable(std::string text) {
  const bool is_plain =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isprint(c) != 0; });
  return is_plain ? text : std::string();
}

/// The word that begins at `at`: what a damaged or foreign file says must not reach a terminal raw.
std::string word(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() &&
         (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_'))
    ++end;
  return std::string(text.substr(at, end - at));
}

std::string word_after(std::string_view text, std::string_view label) {
  const size_t at = text.find(label);
  return at == text.npos ? std::string() : word(text, at + label.size());
}

}  // namespace

std::string KernelKey::digest() const {
  // FNV-1a over 128 bits; the entry also keeps the text, so that a collision is seen, not served.
  constexpr auto from_halves = [](uint64_t hi, uint64_t lo) {
    return static_cast<unsigned __int128>(hi) << 64 | lo;
  };
  const unsigned __int128 prime = from_halves(0x0000000001000000u, 0x000000000000013Bu);
  unsigned __int128 hash = from_halves(0x6c62272e07bb0142u, 0x62b821756295c58du);
  for (const unsigned char c : text) hash = (hash ^ c) * prime;
  return fmt::format("{:016x}{:016x}", static_cast<uint64_t>(hash >> 64),
                     static_cast<uint64_t>(hash));
}

KernelKey kernel_key(const std::string& source, const std::string& architecture,
                     const CompilerVersion& version) {
  std::string text = fmt::format("format {}\nnvrtc {}.{}\n{}{:016x}\n", kFormat, version.major,
                                 version.minor, kHeadersLine, sources_digest());
  for (const std::string& flag : compile_flags(architecture)) text += flag + "\n";
  return {text + source};
}

uint64_t checksum(std::span<const char> bytes) {
  uint64_t hash = 14695981039346656037u;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211u;
  return hash;
}

std::string entry_text(const KernelKey& key, const std::string& name, const UnitSummary& made_for,
                       std::span<const char> image) {
  return nlohmann::json{{"name", name},
                        {"dtype", made_for.dtype},
                        {"head_dim", made_for.head_dim},
                        {"features", made_for.features},
                        {"key", key.text},
                        {"checksum", checksum(image)}}
      .dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status check_entry(std::string_view text, std::span<const char> image, const KernelKey& key) {
  const auto wrong = [](const char* what) { return error(Code::io_failed, "{}", what); };
  try {
    const nlohmann::json entry = nlohmann::json::parse(text, nullptr, false);
    if (entry.at("checksum").get<uint64_t>() != checksum(image))
      return wrong("its checksum is wrong");
    if (entry.at("key").get<std::string>() != key.text)
      return wrong("it was made from another source");
  } catch (const nlohmann::json::exception&) {
    return wrong("its description does not parse");
  }
  return {};
}

EntryWords words_of_entry(std::string_view text) {
  const nlohmann::json entry = nlohmann::json::parse(text, nullptr, false);
  const std::string key = text_at(entry, "key");
  return {.name = word(text_at(entry, "name"), 0),
          .architecture = word_after(key, kArchitectureFlag),
          .made_for = {.dtype = printable(text_at(entry, "dtype")),
                       .head_dim = printable(text_at(entry, "head_dim")),
                       .features = printable(text_at(entry, "features"))},
          .outdated = !key.empty() &&
                      word_after(key, kHeadersLine) != fmt::format("{:016x}", sources_digest())};
}

}  // namespace heddle::engine::cuda
