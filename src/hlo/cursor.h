// Reads characters of HLO text from left to right; blanks and comments between tokens vanish.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"

namespace heddle::hlo {

class Cursor {
 public:
  Cursor(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  /// "file:line:column: expected WHAT, found ..." at the next token.
  Status expected(std::string_view what);
  /// "file:line:column: SENTENCE" at offset `at`.
  Status complaint(size_t at, std::string_view sentence) const;

  size_t offset() const { return offset_; }
  void rewind(size_t offset) { offset_ = offset; }
  /// Past blanks, `// ...` and `/* ... */`; gives the offset reached. An unclosed comment ends the
  /// text.
  size_t skip_blanks() { return stands_on_token() ? offset_ : skip_to_token(); }
  bool at_end() { return skip_blanks() == text_.size(); }
  /// The next character, after blanks; '\0' at the end.
  char peek();
  /// The character right at the offset, blanks included; '\0' at the end.
  char peek_raw() const { return offset_ < text_.size() ? text_[offset_] : '\0'; }
  size_t remaining() const { return text_.size() - offset_; }
  std::string_view between(size_t from, size_t to) const { return text_.substr(from, to - from); }

  /// Takes `token` (punctuation) if it comes next.
  bool accept(std::string_view token);
  Status expect(std::string_view token);
  /// Takes a name, [A-Za-z_][A-Za-z0-9_.-]*; empty if none comes next. `%` before it is taken too.
  std::string_view accept_name();
  Result<std::string_view> expect_name(std::string_view what);
  /// The name that comes next, not taken.
  std::string_view peek_name();
  /// Whether any name so far had a '%'.
  bool saw_percent() const { return saw_percent_; }
  /// Takes the word `word` if it comes next as a whole.
  bool accept_word(std::string_view word);
  Result<int64_t> expect_integer(std::string_view what);
  /// Takes a quoted string; the view includes the quotes.
  Result<std::string_view> expect_quoted();
  /// Takes a run of text with balanced brackets and closed quotes, up to a comma, a blank or an
  /// unmatched bracket. Never empty.
  Result<std::string_view> expect_verbatim(std::string_view what);

 private:
  bool stands_on_token() const {
    return offset_ < text_.size() && text_[offset_] > ' ' && text_[offset_] != '/';
  }
  size_t skip_to_token();
  Status take_quoted();
  Status take_balanced();

  std::string_view text_;
  std::string_view file_;
  size_t offset_ = 0;
  bool saw_percent_ = false;
};

bool is_name_start(char c);
bool is_name_character(char c);

}  // namespace heddle::hlo
