#include "engine/cuda/config_source.h"

#include <cctype>

namespace heddle::engine::cuda {

std::string device_name(std::string_view field, bool is_type) {
  std::string name = is_type ? "" : "k";
  bool starts_word = true;
  for (const char c : field) {
    if (c == '_') {
      starts_word = true;
      continue;
    }
    name += starts_word ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    starts_word = false;
  }
  return name;
}

std::string source_of(int value) { return fmt::format("{}", value); }
std::string source_of(float value) { return fmt::format("{:a}f", value); }
std::string source_of(bool value) { return value ? "true" : "false"; }
std::string source_of(Element value) { return fmt::format("heddle::Element::{}", name(value)); }
std::string source_of(attention::Dropout value) {
  return fmt::format("attention::Dropout::{}", name(value));
}
std::string source_of(attention::KeyRows value) {
  return fmt::format("attention::KeyRows::{}", name(value));
}
std::string source_of(attention::RopePairing value) {
  return fmt::format("attention::RopePairing::{}", name(value));
}
std::string source_of(sm90::Tiled value) {
  constexpr const char* kNames[] = {"none", "values", "booleans"};
  return fmt::format("sm90::Tiled::{}", kNames[static_cast<int>(value)]);
}

void ConfigWords::add(std::string_view feature) {
  if (!summary.features.empty()) summary.features += ", ";
  summary.features += feature;
}

void ConfigWords::operator()(std::string_view, Element value, std::string_view words) {
  const std::string_view type = name(value);
  if (summary.dtype.empty()) summary.dtype = type;
  if (!words.empty() && type != summary.dtype) add(fmt::format("{} {}", words, type));
}
void ConfigWords::operator()(std::string_view, bool value, std::string_view words) {
  if (value && !words.empty()) add(words);
}
void ConfigWords::operator()(std::string_view, attention::Dropout value) {
  if (value != attention::Dropout::none) add(fmt::format("dropout {}", name(value)));
}
void ConfigWords::operator()(std::string_view, attention::KeyRows value, std::string_view words) {
  if (value != attention::KeyRows::dense) add(fmt::format("{} {}", name(value), words));
}

}  // namespace heddle::engine::cuda
