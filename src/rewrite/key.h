// A row of whole numbers that says all of a thing there is to tell it by, for hash maps.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace heddle::rewrite {

using Key = std::vector<int64_t>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    return std::hash<std::string_view>()(
        {reinterpret_cast<const char*>(key.data()), key.size() * sizeof(int64_t)});
  }
};

template <class Value>
using ByKey = std::unordered_map<Key, Value, KeyHash>;

}  // namespace heddle::rewrite
