#include "tools/npy.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include "tools/input_file.h"

namespace heddle::tools {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kLongestHeader = 1 << 16;  // ours take 128 bytes; dims of rank 8 need far less

/// The header's text is a Python dict literal of three keys; this reads that and nothing else.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& path, size_t offset)
      : text_(text), path_(path), offset_(offset) {}

  struct Header {
    std::string descr;
    bool fortran_order = false;
    Dims dims;
  };

  Result<Header> read() {
    Header header;
    bool seen_descr = false, seen_order = false, seen_shape = false;
    HEDDLE_TRY(expect('{'));
    while (!accept('}')) {
      HEDDLE_ASSIGN(const std::string key, string());
      HEDDLE_TRY(expect(':'));
      if (key == "descr" && !seen_descr) {
        HEDDLE_ASSIGN(header.descr, string());
        seen_descr = true;
      } else if (key == "fortran_order" && !seen_order) {
        HEDDLE_ASSIGN(header.fortran_order, boolean());
        seen_order = true;
      } else if (key == "shape" && !seen_shape) {
        HEDDLE_ASSIGN(header.dims, shape());
        seen_shape = true;
      } else {
        return failure(fmt::format(
            "the key '{}'; the header holds 'descr', 'fortran_order' and 'shape', each once", key));
      }
      if (!accept(',')) {
        HEDDLE_TRY(expect('}'));
        break;
      }
    }
    skip_spaces();
    if (position_ != text_.size()) return failure("something after the header's closing brace");
    if (!seen_descr || !seen_order || !seen_shape)
      return failure("the end of the header; it must hold 'descr', 'fortran_order' and 'shape'");
    return header;
  }

 private:
  void skip_spaces() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n'))
      ++position_;
  }

  bool accept(char c) {
    skip_spaces();
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  Status failure(std::string_view found) const {
    return error(Code::malformed_input, "{}: byte {}: the .npy header holds {}", path_,
                 offset_ + position_, found);
  }

  Status expect(char c) {
    if (accept(c)) return Status();
    if (position_ >= text_.size()) return failure(fmt::format("its end where '{}' should be", c));
    return failure(fmt::format("'{}' where '{}' should be", text_[position_], c));
  }

  Result<std::string> string() {
    skip_spaces();
    const char quote = position_ < text_.size() ? text_[position_] : ' ';
    if (quote != '\'' && quote != '"') return failure("no quoted string where one should be");
    const size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) return failure("a string that does not end");
    std::string value(text_.substr(position_ + 1, end - position_ - 1));
    position_ = end + 1;
    return value;
  }

  Result<bool> boolean() {
    skip_spaces();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(position_).starts_with(word)) {
        position_ += word.size();
        return value;
      }
    }
    return failure("neither True nor False for 'fortran_order'");
  }

  Result<Dims> shape() {
    Dims dims;
    HEDDLE_TRY(expect('('));
    while (!accept(')')) {
      skip_spaces();
      int64_t dim = 0;
      const char* begin = text_.data() + position_;
      const auto [end, problem] = std::from_chars(begin, text_.data() + text_.size(), dim);
      if (problem != std::errc() || dim < 0)
        return failure("a dim that is no whole number from 0 to 2^63-1");
      if (dims.rank() == kMaxRank)
        return failure(fmt::format("more than {} dims; at most that many are allowed", kMaxRank));
      dims.push_back(dim);
      position_ += static_cast<size_t>(end - begin);
      if (!accept(',')) {
        HEDDLE_TRY(expect(')'));
        break;
      }
    }
    return dims;
  }

  std::string_view text_;
  const std::string& path_;
  size_t offset_;
  size_t position_ = 0;
};

struct Description {
  DataType dtype;
  std::string_view text;
};
constexpr Description kDescriptions[] = {
    {DataType::f64, "<f8"},    {DataType::f32, "<f4"},    {DataType::f16, "<f2"},
    {DataType::bf16, "<V2"},   {DataType::f8e4m3, "<V1"}, {DataType::f8e5m2, "<V1"},
    {DataType::i64, "<i8"},    {DataType::i32, "<i4"},    {DataType::i8, "|i1"},
    {DataType::u64, "<u8"},    {DataType::u32, "<u4"},    {DataType::u8, "|u1"},
    {DataType::boolean, "|b1"}};

std::optional<DataType> dtype_of(std::string_view descr, DataType raw) {
  if (descr.size() == 3 && descr[1] == 'V') {  // raw bytes: '<V2' and '|V2' are both in use
    if (descr[2] - '0' == size_of(raw)) return raw;
    return std::nullopt;
  }
  if (descr == "<u2" && raw == DataType::bf16) return raw;  // its bits, as a view of NumPy's
  for (const Description& known : kDescriptions)
    if (known.text == descr) return known.dtype;
  return std::nullopt;
}

std::string_view description_of(DataType dtype) {
  for (const Description& known : kDescriptions)
    if (known.dtype == dtype) return known.text;
  return "";
}

/// The same elements, first dim fastest in `data`, with the last dim fastest.
std::vector<std::byte> row_major(const std::vector<std::byte>& data, const Dims& dims,
                                 int64_t element_bytes) {
  std::vector<std::byte> result(data.size());
  Dims index;
  for (int i = 0; i < dims.rank(); ++i) index.push_back(0);
  const int64_t count = static_cast<int64_t>(data.size()) / element_bytes;
  for (int64_t to = 0; to < count; ++to) {
    int64_t from = 0;
    for (int i = dims.rank() - 1; i >= 0; --i) from = from * dims[i] + index[i];
    std::memcpy(result.data() + to * element_bytes, data.data() + from * element_bytes,
                static_cast<size_t>(element_bytes));
    for (int i = dims.rank() - 1; i >= 0 && ++index[i] == dims[i]; --i) index[i] = 0;
  }
  return result;
}

}  // namespace

Result<Array> read_npy(const std::string& path, DataType raw) {
  HEDDLE_ASSIGN(const InputFile input, open_input(path, kMostArrayBytes));
  if (!input.bytes)
    return error(Code::io_failed, "{} has no size, expected a .npy file, which has one", path);
  const auto file_bytes = static_cast<size_t>(*input.bytes);
  const auto read = [&input](void* to, size_t bytes) {
    return std::fread(to, 1, bytes, input.stream.get());
  };

  char start[12] = {};
  if (read(start, 10) < 10 || std::string_view(start, 6) != kMagic)
    return error(Code::malformed_input,
                 "{}: byte 0: not a .npy file: it must start with the bytes \\x93NUMPY", path);
  const int version = static_cast<uint8_t>(start[6]);
  if (version < 1 || version > 3)
    return error(Code::malformed_input,
                 "{}: byte 6: .npy format version {}; versions 1 to 3 are allowed", path, version);
  size_t header_bytes =
      static_cast<uint8_t>(start[8]) | static_cast<size_t>(static_cast<uint8_t>(start[9])) << 8;
  size_t header_start = 10;
  if (version > 1) {
    read(start + 10, 2);
    header_start = 12;
    header_bytes |= static_cast<size_t>(static_cast<uint8_t>(start[10])) << 16 |
                    static_cast<size_t>(static_cast<uint8_t>(start[11])) << 24;
  }
  if (header_bytes > kLongestHeader || header_start + header_bytes > file_bytes)
    return error(
        Code::malformed_input,
        "{}: byte 8: a header of {} bytes in a file of {}; headers have at most {} bytes and "
        "lie within the file",
        path, header_bytes, file_bytes, kLongestHeader);
  std::string text(header_bytes, '\0');
  read(text.data(), header_bytes);
  HEDDLE_ASSIGN(const HeaderReader::Header header, HeaderReader(text, path, header_start).read());

  const std::optional<DataType> dtype = dtype_of(header.descr, raw);
  if (!dtype)
    return error(
        Code::malformed_input,
        "{}: byte {}: elements described as '{}'; little-endian f2, f4, f8, i1, i4, i8, u1, "
        "u4, u8, b1, and V1 or V2 for fp8 and bf16 (u2 too) are allowed",
        path, header_start, header.descr);
  const std::optional<int64_t> count = element_count(header.dims);
  const size_t held = file_bytes - header_start - header_bytes;
  if (!count || static_cast<size_t>(*count) > held / static_cast<size_t>(size_of(*dtype)) ||
      static_cast<size_t>(*count * size_of(*dtype)) != held)
    return error(Code::malformed_input,
                 "{}: byte {}: {} bytes of elements, not what {} elements of {} take", path,
                 header_start + header_bytes, held, to_string(header.dims), name(*dtype));

  Array array{*dtype, header.dims, std::vector<std::byte>(held)};
  if (const size_t had = read(array.data.data(), held); had != held)
    return error(Code::io_failed, "{}: reading ended after {} of {} bytes", path, had, held);
  if (header.fortran_order && array.dims.rank() > 1)
    array.data = row_major(array.data, array.dims, size_of(array.dtype));
  return array;
}

Status write_npy(const Array& array, const std::string& path) {
  const std::optional<int64_t> count = element_count(array.dims);
  if (!count || static_cast<size_t>(*count * size_of(array.dtype)) != array.data.size())
    return error(Code::invalid_value, "{} elements of {} in {} bytes cannot be written to {}",
                 to_string(array.dims), name(array.dtype), array.data.size(), path);
  std::string shape;
  for (const int64_t dim : array.dims) shape += fmt::format("{},", dim);
  if (array.dims.rank() > 1) shape.pop_back();  // Python's tuples: (2,) but (2,3)
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                   description_of(array.dtype), shape);
  // The format asks that the elements start at a multiple of 64, and the header end in a newline.
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';

  // A device or a pipe would be replaced by a file.
  if (std::error_code unknown;
      std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown))
    return error(Code::io_failed, "{} is no file, expected one or a name for one", path);
  const std::string temporary = path + ".partial";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << kMagic << '\x01' << '\0' << static_cast<char>(header.size() & 0xff)
       << static_cast<char>(header.size() >> 8) << header;
  file.write(reinterpret_cast<const char*>(array.data.data()),
             static_cast<std::streamsize>(array.data.size()));
  file.close();
  std::error_code problem;
  if (file) std::filesystem::rename(temporary, path, problem);
  if (!file || problem) {
    std::filesystem::remove(temporary, problem);
    return error(Code::io_failed, "{} cannot be written", path);
  }
  return Status();
}

}  // namespace heddle::tools
