#include "hlo/quoting.h"

#include <fmt/format.h>

namespace heddle::hlo {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_octal(char c) { return c >= '0' && c <= '7'; }

}  // namespace

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    switch (c) {
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '"':
      case '\'':
      case '\\':
        out += '\\';
        out += c;
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
          out += fmt::format("\\{:03o}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

std::optional<std::string> unquote(std::string_view text) {
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    if (++i == text.size()) return std::nullopt;
    switch (text[i]) {
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'a':
        out += '\a';
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case 'v':
        out += '\v';
        break;
      case 'x': {
        int value = 0;
        size_t digits = 0;
        while (digits < 2 && i + 1 < text.size() && hex_digit(text[i + 1]) >= 0) {
          value = value * 16 + hex_digit(text[++i]);
          ++digits;
        }
        if (digits == 0) return std::nullopt;
        out += static_cast<char>(value);
        break;
      }
      default:
        if (is_octal(text[i])) {
          int value = text[i] - '0';
          for (int digits = 1; digits < 3 && i + 1 < text.size() && is_octal(text[i + 1]);
               ++digits) {
            value = value * 8 + (text[++i] - '0');
          }
          out += static_cast<char>(value);
        } else {
          out += text[i];
        }
    }
  }
  return out;
}

}  // namespace heddle::hlo
