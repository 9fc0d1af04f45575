#include "tools/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>

namespace heddle::tools {
namespace {

bool is_number(const std::string& cell) {
  const bool digit =
      std::any_of(cell.begin(), cell.end(), [](unsigned char c) { return std::isdigit(c); });
  return cell == "-" ||
         (digit && cell.find_first_not_of("+-.,0123456789eExX%") == std::string::npos);
}

}  // namespace

std::string table(const std::vector<std::vector<std::string>>& rows) {
  size_t columns = 0;
  for (const auto& row : rows) columns = std::max(columns, row.size());
  std::vector<size_t> widths(columns);
  std::vector<bool> numeric(columns, rows.size() > 1);
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < rows[r].size(); ++c) {
      widths[c] = std::max(widths[c], rows[r][c].size());
      if (r > 0 && !is_number(rows[r][c])) numeric[c] = false;
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      if (c > 0) line += "  ";
      line += numeric[c] ? padding + row[c] : row[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string counted(size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string wrap(const std::string& text, size_t width, size_t indent, size_t start) {
  std::istringstream words(text);
  std::string word, result;
  size_t column = start;
  while (words >> word) {
    if (!result.empty() && column + 1 + word.size() > width) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!result.empty()) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result;
}

}  // namespace heddle::tools
