#include "tools/npy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

namespace heddle::tools {
namespace {

class Npy : public testing::Test {
 protected:
  Npy()
      : path_(testing::TempDir() + "heddle_npy_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {}
  ~Npy() override { std::remove(path_.c_str()); }

  void write_bytes(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
  /// A file of version 1.0 with this header text and these element bytes.
  void write_file(const std::string& header, const std::string& elements) {
    std::string bytes("\x93NUMPY\x01\x00", 8);
    bytes += static_cast<char>(header.size() & 0xff);
    bytes += static_cast<char>(header.size() >> 8);
    write_bytes(bytes + header + elements);
  }
  std::string complaint(DataType raw = DataType::bf16) {
    const Result<Array> array = read_npy(path_, raw);
    EXPECT_FALSE(array.is_ok());
    std::string message = array.status().message();
    EXPECT_NE(message.find(path_), std::string::npos) << message;
    return message;
  }
  bool complains(const std::string& part, DataType raw = DataType::bf16) {
    const std::string message = complaint(raw);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    return message.find(part) != std::string::npos;
  }

  std::string path_;
};

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST_F(Npy, RoundTripsEveryType) {
  for (const DataType dtype :
       {DataType::f64, DataType::f32, DataType::f16, DataType::bf16, DataType::f8e4m3,
        DataType::f8e5m2, DataType::i64, DataType::i32, DataType::i8, DataType::u64, DataType::u32,
        DataType::u8, DataType::boolean}) {
    Array array{dtype, {2, 3}, std::vector<std::byte>(static_cast<size_t>(6 * size_of(dtype)))};
    for (size_t i = 0; i < array.data.size(); ++i) array.data[i] = static_cast<std::byte>(7 * i);
    ASSERT_TRUE(write_npy(array, path_).is_ok());
    const Result<Array> read = read_npy(path_, dtype);
    ASSERT_TRUE(read.is_ok()) << read.status().message();
    EXPECT_EQ(read->dtype, dtype);
    EXPECT_EQ(read->dims, array.dims);
    EXPECT_EQ(read->data, array.data);
  }
}

TEST_F(Npy, RoundTripsScalarsEmptyArraysAndVectors) {
  for (const Dims& dims : {Dims{}, Dims{0}, Dims{3, 0, 2}, Dims{5}, Dims{1, 1, 1, 1, 1, 1, 1, 2}}) {
    const Array array{DataType::f32, dims,
                      std::vector<std::byte>(static_cast<size_t>(*element_count(dims) * 4))};
    ASSERT_TRUE(write_npy(array, path_).is_ok());
    const Result<Array> read = read_npy(path_);
    ASSERT_TRUE(read.is_ok()) << read.status().message();
    EXPECT_EQ(read->dims, dims);
  }
}

TEST_F(Npy, ElementsStartAtAMultipleOf64) {
  const Array array{DataType::f32, {2}, bytes_of<float>({1.5f, -2.0f})};
  ASSERT_TRUE(write_npy(array, path_).is_ok());
  std::ifstream file(path_, std::ios::binary | std::ios::ate);
  EXPECT_EQ((static_cast<int64_t>(file.tellg()) - 8) % 64, 0);
}

TEST_F(Npy, FortranOrderComesBackRowMajor) {
  const std::vector<int32_t> columns = {0, 10, 1, 11, 2, 12};  // [[0, 1, 2], [10, 11, 12]]
  std::string elements(24, '\0');
  std::memcpy(elements.data(), columns.data(), 24);
  write_file("{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3), }\n", elements);
  const Result<Array> read = read_npy(path_);
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  EXPECT_EQ(read->data, bytes_of<int32_t>({0, 1, 2, 10, 11, 12}));
}

TEST_F(Npy, RefusesWhatIsNoNpyFile) {
  EXPECT_EQ(read_npy(path_ + ".absent").status().message(),
            path_ + ".absent cannot be read: No such file or directory");
  EXPECT_EQ(read_npy("/dev/zero").status().message(),
            "/dev/zero is a device, expected a file or a pipe");
  EXPECT_EQ(read_npy("/tmp").status().message(), "/tmp cannot be read: Is a directory");
  write_bytes("");
  EXPECT_TRUE(complains("byte 0: not a .npy file"));
  write_bytes("PK\x03\x04 something else");
  EXPECT_TRUE(complains("byte 0: not a .npy file"));
  write_bytes(std::string("\x93NUMPY\x09\x00\x10\x00{}", 12));
  EXPECT_TRUE(complains("format version 9"));
}

TEST_F(Npy, RefusesAPipe) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const int other_end = open(path_.c_str(), O_RDWR);  // else opening waits for one
  EXPECT_EQ(complaint(), path_ + " has no size, expected a .npy file, which has one");
  close(other_end);
}

TEST_F(Npy, RefusesTruncationAtEveryByte) {
  const Array array{DataType::f32, {2, 2}, bytes_of<float>({1, 2, 3, 4})};
  ASSERT_TRUE(write_npy(array, path_).is_ok());
  std::ifstream file(path_, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  for (size_t length = 0; length < whole.size(); ++length) {
    write_bytes(whole.substr(0, length));
    EXPECT_FALSE(read_npy(path_).is_ok()) << length;
  }
  write_bytes(whole + "x");
  EXPECT_TRUE(complains("17 bytes of elements"));
}

TEST_F(Npy, RefusesHostileDims) {
  write_file("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", "");
  EXPECT_TRUE(complains("0 bytes of elements"));
  write_file("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 1), }", "abcd");
  EXPECT_TRUE(complains("4 bytes of elements"));
  write_file("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "");
  EXPECT_TRUE(complains("a dim that is no whole number"));
  write_file("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", "abcd");
  EXPECT_TRUE(complains("more than 8 dims"));
}

TEST_F(Npy, RefusesOtherHeaders) {
  write_file("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "abcd");
  EXPECT_TRUE(complains("described as '>f4'"));
  write_file("{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }", "abcd");
  EXPECT_TRUE(complains("described as '<V2'", DataType::f8e5m2));
  write_file("{'descr': '<f4', 'shape': (1,), }", "abcd");
  EXPECT_TRUE(complains("must hold 'descr', 'fortran_order' and 'shape'"));
  write_file("{'descr': '<f4', 'descr': '<f4', }", "abcd");
  EXPECT_TRUE(complains("the key 'descr'"));
  write_file("{'descr': '<f4', 'fortran_order': maybe, 'shape': (1,), }", "abcd");
  EXPECT_TRUE(complains("neither True nor False"));
  write_file("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } trailing", "abcd");
  EXPECT_TRUE(complains("something after"));
  write_file("{'descr': '<f4", "abcd");
  EXPECT_TRUE(complains("a string that does not end"));
}

TEST_F(Npy, RefusesToWriteWhatDoesNotAddUp) {
  EXPECT_EQ(write_npy({DataType::f32, {2}, bytes_of<float>({1})}, path_).code(),
            Code::invalid_value);
  EXPECT_EQ(write_npy({DataType::f32, {1}, bytes_of<float>({1})}, "/nonexistent/a.npy").code(),
            Code::io_failed);
}

}  // namespace
}  // namespace heddle::tools
