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

/// The text form, and where a tensor has the uid 0 a line with what the text calls it.
inline error_t Graph::serialize(std::vector<uint8_t>& bytes, bool) const {
  std::string out;
  if (error_t error = text(out, true); error.is_bad()) return error;
  if (const int64_t zero = stand_in_for_zero()) out += "\n" + std::to_string(zero);
  bytes.assign(out.begin(), out.end());
  return {};
}

inline error_t Graph::deserialize(const std::string& given) {
  heddle_graph* made = nullptr;
  const error_t error = detail::check(heddle_graph_parse(given.data(), given.size(), &made));
  heddle_graph_free(made);
  if (error.is_bad()) return error;
  nodes_.clear();
  candidate_.reset();
  plan_.reset();
  parsed_ = given;
  zero_ = 0;
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
  std::string given(bytes.begin(), bytes.end());
  int64_t zero = 0;
  const size_t digits = given.find_last_not_of("0123456789") + 1;
  if (digits > 1 && digits < given.size() && given.size() - digits < 19 &&
      given[digits - 1] == '\n') {
    zero = std::stoll(given.substr(digits));
    given.resize(digits - 1);
  }
  if (error_t error = deserialize(given); error.is_bad()) return error;
  zero_ = zero;
  return build(handle, {HeurMode_t::A});
}

inline size_t Graph::key() const {
  std::string all;
  if (text(all, false).is_bad()) return 0;
  all += heddle_version();
  all += std::to_string(stand_in_for_zero()) + ":" + std::to_string(workspace_limit_) + ":" +
         (handle_ ? std::to_string(static_cast<int>(handle_->device))
                  : "sm" + std::to_string(sm_version_));
  for (BehaviorNote_t note : selected_notes_) all += std::string("+") + detail::name(note);
  for (BehaviorNote_t note : deselected_notes_) all += std::string("-") + detail::name(note);
  for (NumericalNote_t note : selected_numerics_) all += std::string("+") + detail::name(note);
  for (NumericalNote_t note : deselected_numerics_) all += std::string("-") + detail::name(note);
  all += std::to_string(shared_memory_limit_);
  std::vector<std::string> filters(deselected_.begin(), deselected_.end());
  std::sort(filters.begin(), filters.end());
  for (const std::string& filter : filters) all += "," + filter;
  uint64_t hash = 14695981039346656037u;  // FNV-1a, 64 bits
  for (unsigned char byte : all) hash = (hash ^ byte) * 1099511628211u;
  return static_cast<size_t>(hash);
}

/// The text form; of a graph that has none, what is wrong with it.
inline std::ostream& operator<<(std::ostream& out, const Graph& graph) {
  std::string text;
  const error_t error = graph.serialize(text);
  return out << (error.is_good() ? text : error.get_message());
}

}  // namespace heddle::frontend::graph
