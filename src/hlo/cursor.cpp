#include "hlo/cursor.h"

#include <algorithm>
#include <charconv>

namespace heddle::hlo {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_character(char c) { return is_name_start(c) || is_digit(c) || c == '.' || c == '-'; }

Status Cursor::complaint(size_t at, std::string_view sentence) const {
  const std::string_view before = text_.substr(0, at);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t line_start =
      before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return error(Code::malformed_input, "{}:{}:{}: {}", file_, line, at - line_start + 1, sentence);
}

Status Cursor::expected(std::string_view what) {
  const size_t at = skip_blanks();
  std::string found = "the end of the text";
  if (at < text_.size()) {
    size_t length = 1;
    if (is_name_character(text_[at])) {
      while (length < 40 && at + length < text_.size() && is_name_character(text_[at + length])) {
        ++length;
      }
    }
    const std::string_view token = text_.substr(at, length);
    const bool printable =
        std::all_of(token.begin(), token.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
    found = printable ? fmt::format("'{}'", token)
                      : fmt::format("byte 0x{:02x}", static_cast<unsigned char>(token[0]));
  }
  return complaint(at, fmt::format("expected {}, found {}", what, found));
}

size_t Cursor::skip_to_token() {
  while (offset_ < text_.size() && !stands_on_token()) {
    if (is_blank(text_[offset_])) {
      ++offset_;
    } else if (text_.substr(offset_, 2) == "//") {
      offset_ = std::min(text_.find('\n', offset_), text_.size());
    } else if (text_.substr(offset_, 2) == "/*") {
      const size_t close = text_.find("*/", offset_ + 2);
      offset_ = close == std::string_view::npos ? text_.size() : close + 2;
    } else {
      break;
    }
  }
  return offset_;
}

char Cursor::peek() {
  skip_blanks();
  return peek_raw();
}

bool Cursor::accept(std::string_view token) {
  skip_blanks();
  if (text_.substr(offset_, token.size()) != token) return false;
  offset_ += token.size();
  return true;
}

Status Cursor::expect(std::string_view token) {
  if (accept(token)) return {};
  return expected(fmt::format("'{}'", token));
}

std::string_view Cursor::peek_name() {
  const size_t start = offset_;
  const std::string_view name = accept_name();
  offset_ = start;
  return name;
}

std::string_view Cursor::accept_name() {
  const size_t before = skip_blanks();
  if (peek_raw() == '%') ++offset_;
  const size_t start = offset_;
  if (!is_name_start(peek_raw())) {
    offset_ = before;
    return {};
  }
  while (is_name_character(peek_raw())) ++offset_;
  saw_percent_ = saw_percent_ || start > before;
  return between(start, offset_);
}

Result<std::string_view> Cursor::expect_name(std::string_view what) {
  const std::string_view name = accept_name();
  if (name.empty()) return expected(what);
  return name;
}

bool Cursor::accept_word(std::string_view word) {
  const size_t start = skip_blanks();
  if (peek_raw() != '%' && accept_name() == word) return true;
  offset_ = start;
  return false;
}

Result<int64_t> Cursor::expect_integer(std::string_view what) {
  const size_t start = skip_blanks();
  int64_t value = 0;
  const auto [end, failure] =
      std::from_chars(text_.data() + start, text_.data() + text_.size(), value);
  if (failure == std::errc::result_out_of_range) {
    return complaint(start, fmt::format("expected {}, found one beyond 64 bits", what));
  }
  if (failure != std::errc()) return expected(what);
  offset_ = static_cast<size_t>(end - text_.data());
  return value;
}

Status Cursor::take_quoted() {
  const size_t open = offset_;
  for (++offset_; offset_ < text_.size(); ++offset_) {
    if (text_[offset_] == '\\') {
      ++offset_;
    } else if (text_[offset_] == '"') {
      ++offset_;
      return {};
    }
  }
  offset_ = text_.size();
  return complaint(open, "expected a closing '\"' for the string that begins here");
}

Status Cursor::take_balanced() {
  const size_t open = offset_;
  std::string closers;
  do {
    if (offset_ >= text_.size()) {
      return complaint(open,
                       fmt::format("expected a closing '{}' for the bracket here", closers[0]));
    }
    const char c = text_[offset_];
    if (c == '"') {
      HEDDLE_TRY(take_quoted());
      continue;
    }
    if (c == '{' || c == '[' || c == '(') {
      closers += c == '{' ? '}' : c == '[' ? ']' : ')';
    } else if (c == '}' || c == ']' || c == ')') {
      if (closers.back() != c) {
        return complaint(offset_, fmt::format("expected '{}', found '{}'", closers.back(), c));
      }
      closers.pop_back();
    }
    ++offset_;
  } while (!closers.empty());
  return {};
}

Result<std::string_view> Cursor::expect_quoted() {
  if (peek() != '"') return expected("a quoted string");
  const size_t start = offset_;
  HEDDLE_TRY(take_quoted());
  return between(start, offset_);
}

Result<std::string_view> Cursor::expect_verbatim(std::string_view what) {
  const size_t start = skip_blanks();
  for (;;) {
    const char c = peek_raw();
    if (c == '"') {
      HEDDLE_TRY(take_quoted());
    } else if (c == '{' || c == '[' || c == '(') {
      HEDDLE_TRY(take_balanced());
    } else if (c == '\0' || c == ',' || c == '}' || c == ']' || c == ')' || is_blank(c)) {
      // `[2,2]<=[4] {1}`: a bracket after spaces still belongs to the value.
      size_t next = offset_;
      while (next < text_.size() && text_[next] == ' ') ++next;
      const bool goes_on = next > offset_ && next < text_.size() && offset_ > start &&
                           (text_[next] == '{' || text_[next] == '[');
      if (!goes_on) break;
      offset_ = next;
    } else {
      ++offset_;
    }
  }
  if (offset_ == start) return expected(what);
  return between(start, offset_);
}

}  // namespace heddle::hlo
