// Charts as SVG: lines over a doubling scale, and bars.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"

namespace heddle::tools {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< x and y, both above 0
};

/// Both axes double from line to line.
std::string line_chart(const std::string& title, const std::string& x, const std::string& y,
                       const std::vector<Series>& series);

struct Bar {
  std::string name, words;  ///< what stands before it and behind it
  double value = 0;
};

/// One below the other, the longest as wide as the picture.
std::string bar_chart(const std::string& title, const std::vector<Bar>& bars);

/// The same as text of so many columns.
std::string bars_as_text(const std::vector<Bar>& bars, size_t columns);

}  // namespace heddle::tools
