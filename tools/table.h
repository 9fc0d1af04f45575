// Tables of text for the terminal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heddle::tools {

/// Columns as wide as their widest cell, two spaces apart; columns whose cells below the head are
/// all numbers stand to the right. Each line ends without spaces and with a newline.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// "1 kernel", "2 kernels".
std::string counted(size_t count, std::string_view noun);

/// `text` broken at spaces into lines of at most `width` columns, each after the first led by
/// `indent` spaces; the first begins in column `start`.
std::string wrap(const std::string& text, size_t width, size_t indent, size_t start = 0);

}  // namespace heddle::tools
