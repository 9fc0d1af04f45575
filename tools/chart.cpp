#include "tools/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace heddle::tools {
namespace {

constexpr const char* kColours[] = {"#1b7837", "#e08214", "#4393c3",
                                    "#b2abd2", "#d6604d", "#666666"};
constexpr double kWidth = 640, kHeight = 360, kLeft = 70, kRight = 130, kTop = 34, kBottom = 44;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else
      out += c;
  }
  return out;
}

std::string text_at(double x, double y, std::string_view text, std::string_view anchor = "start") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(text));
}

std::string begin(double width, double height, const std::string& title) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
             "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
             "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
             width, height) +
         text_at(width / 2, 18, title, "middle");
}

/// Powers of two around all values, at least two of them.
struct Scale {
  double low = std::numeric_limits<double>::infinity(), high = 0;

  void take(double value) { low = std::min(low, value), high = std::max(high, value); }
  void finish() {
    low = std::exp2(std::floor(std::log2(low)));
    high = std::exp2(std::ceil(std::log2(high)));
    if (high <= low) high = 2 * low;
  }
  double part(double value) const { return std::log2(value / low) / std::log2(high / low); }
};

}  // namespace

std::string line_chart(const std::string& title, const std::string& x, const std::string& y,
                       const std::vector<Series>& series) {
  Scale across, up;
  for (const Series& one : series)
    for (const auto& [at, value] : one.points) across.take(at), up.take(value);
  std::string out = begin(kWidth, kHeight, title);
  if (up.high == 0) return out + "</svg>\n";
  across.finish(), up.finish();
  const auto x_of = [&](double at) { return kLeft + across.part(at) * (kWidth - kLeft - kRight); };
  const auto y_of = [&](double value) {
    return kHeight - kBottom - up.part(value) * (kHeight - kTop - kBottom);
  };
  const auto line = [&](double x1, double y1, double x2, double y2) {
    out += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#dddddd\"/>\n", x1,
        y1, x2, y2);
  };
  for (double at = across.low; at <= across.high; at *= 2) {
    line(x_of(at), y_of(up.low), x_of(at), y_of(up.high));
    out += text_at(x_of(at), kHeight - kBottom + 16, fmt::format("{:g}", at), "middle");
  }
  for (double value = up.low; value <= up.high; value *= 2) {
    line(kLeft, y_of(value), kWidth - kRight, y_of(value));
    out += text_at(kLeft - 6, y_of(value) + 4, fmt::format("{:.4g}", value), "end");
  }
  out += text_at(kLeft + (kWidth - kLeft - kRight) / 2, kHeight - 8, x, "middle");
  out += text_at(6, kTop - 4, y);
  for (size_t n = 0; n < series.size(); ++n) {
    const char* const colour = kColours[n % std::size(kColours)];
    std::string points;
    for (const auto& [at, value] : series[n].points) {
      points += fmt::format("{:.1f},{:.1f} ", x_of(at), y_of(value));
      out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x_of(at),
                         y_of(value), colour);
    }
    out += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\"/>\n", points, colour);
    const double at = kTop + 16 * static_cast<double>(n + 1);
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n",
                       kWidth - kRight + 10, at - 9, colour);
    out += text_at(kWidth - kRight + 24, at, series[n].name);
  }
  return out + "</svg>\n";
}

namespace {

double longest(const std::vector<Bar>& bars) {
  double most = 0;
  for (const Bar& bar : bars) most = std::max(most, bar.value);
  return most > 0 ? most : 1;
}

}  // namespace

std::string bar_chart(const std::string& title, const std::vector<Bar>& bars) {
  constexpr double kRow = 40, kWide = 860, kEdge = 12;
  const double most = longest(bars);
  std::string out = begin(kWide, 40 + kRow * static_cast<double>(bars.size()), title);
  for (size_t n = 0; n < bars.size(); ++n) {
    const double y = 46 + kRow * static_cast<double>(n);
    out += text_at(kEdge, y, fmt::format("{}   {}", bars[n].name, bars[n].words));
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"12\" fill=\"{}\"/>\n", kEdge,
        y + 5, (kWide - 2 * kEdge) * bars[n].value / most, kColours[n % std::size(kColours)]);
  }
  return out + "</svg>\n";
}

std::string bars_as_text(const std::vector<Bar>& bars, size_t columns) {
  std::string out;
  const double most = longest(bars);
  for (const Bar& bar : bars) {
    const auto filled =
        static_cast<size_t>(std::lround(bar.value / most * static_cast<double>(columns)));
    out += fmt::format("{}   {}\n  {}\n", bar.name, bar.words, std::string(filled, '#'));
  }
  return out;
}

}  // namespace heddle::tools
