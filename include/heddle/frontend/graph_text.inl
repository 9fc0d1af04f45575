// Graph's text form and key. Part of graph.h.
#pragma once

namespace heddle::frontend::graph {

inline error_t Graph::text(std::string& out, bool with_names) const {
  Owned graph;
  if (error_t error = make(graph, with_names); error.is_bad()) return error;
  const char* written = nullptr;
  if (error_t error = detail::check(heddle_graph_text(graph.get(), &written)); error.is_bad())
    return error;
  out = written;
  return {};
}

inline error_t Graph::serialize(std::string& out) const { return text(out, true); }

inline error_t Graph::serialize(std::vector<uint8_t>& bytes) const {
  std::string out;
  if (error_t error = text(out, true); error.is_bad()) return error;
  bytes.assign(out.begin(), out.end());
  return {};
}

inline error_t Graph::deserialize(const std::string& given) {
  heddle_graph* made = nullptr;
  const error_t error = detail::check(heddle_graph_parse(given.data(), given.size(), &made));
  heddle_graph_free(made);
  if (error.is_bad()) return error;
  nodes_.clear();
  plan_.reset();
  parsed_ = given;
  return {};
}

inline error_t Graph::group_query_attention(const heddle_gqa& node) {
  heddle_graph* made = nullptr;
  error_t error = detail::check(heddle_gqa_create(&node, &made));
  const Owned graph(made);
  const char* written = nullptr;
  if (error.is_good()) error = detail::check(heddle_graph_text(made, &written));
  return error.is_bad() ? error : deserialize(std::string(written));
}

inline error_t Graph::deserialize(const Handle& handle, const std::vector<uint8_t>& bytes) {
  if (error_t error = deserialize(std::string(bytes.begin(), bytes.end())); error.is_bad())
    return error;
  return build(handle, {HeurMode_t::A});
}

inline size_t Graph::key() const {
  std::string all;
  if (text(all, false).is_bad()) return 0;
  all += heddle_version();
  all += std::to_string(static_cast<int>(handle_.device)) + ":" + std::to_string(workspace_limit_);
  std::vector<std::string> filters(deselected_.begin(), deselected_.end());
  std::sort(filters.begin(), filters.end());
  for (const std::string& filter : filters) all += "," + filter;
  uint64_t hash = 14695981039346656037u;  // FNV-1a, 64 bits
  for (unsigned char byte : all) hash = (hash ^ byte) * 1099511628211u;
  return static_cast<size_t>(hash);
}

}  // namespace heddle::frontend::graph
