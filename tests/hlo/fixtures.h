// The HLO modules of tests/data/hlo.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace heddle::hlo {

inline std::vector<std::string> fixture_paths() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(HEDDLE_TEST_DATA "/hlo")) {
    if (entry.path().extension() == ".hlo") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// "grad_causal_kv1_optimized": what GoogleTest accepts as a parameter's name.
inline std::string fixture_name(const std::string& path) {
  std::string name = std::filesystem::path(path).stem().string();
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

}  // namespace heddle::hlo
