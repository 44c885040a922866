#include "formats/safetensors.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/formats/run_python.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

// A file with this header, padded to no boundary, and these bytes of values.
std::string FileOf(const std::string& header, const std::string& values) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + values;
}

std::string ErrorOfTensors(const std::string& contents) {
  const TemporaryFolder folder;
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(folder.Write("m.safetensors", contents));
  return file.ok() ? "accepted" : std::string(file.status().message());
}

TEST(Safetensors, NumpyReadsTheSameBits) {
  const TemporaryFolder folder;
  const float a[6] = {0, -0.0f, 1.5f, 1e-42f, std::numeric_limits<float>::infinity(), -3};
  const float b[1] = {0.1f};
  ASSERT_TRUE(WriteSafetensors(folder / "m.safetensors", std::vector<TensorData>{{"z", {2, 3}, a}, {"scalar", {}, b}},
                               {{"format", "pt"}, {"who", "a \"b\""}})
                  .ok());
  EXPECT_EQ(RunPython("tests/formats/read_safetensors.py", folder / "m.safetensors"),
            "format=pt\n"
            "who=a \"b\"\n"
            "scalar float32 [] cdcccc3d\n"
            "z float32 [2, 3] 00000000000000800000c03fca020000"
            "0000807f000040c0\n");
}

TEST(Safetensors, Bfloat16IsRoundedToNearestTiesToEven) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const float values[10] = {1.5f,          -0.0f,           0x1.01p0f, 0x1.03p0f, 0x1.010002p0f,
                            0x1.00fffep0f, 0x1.fffffep127f, -inf,      nan,       0x1p-133f};
  const TemporaryFolder folder;
  const std::string path = folder / "m.safetensors";
  const std::vector<TensorData> tensors = {{"a", {10}, values}, {"b", {1}, std::span(values).first(1)}};
  ASSERT_TRUE(WriteSafetensors(path, tensors, {}, ValueType::kBfloat16).ok());
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("a")->dtype, "BF16");
  EXPECT_EQ(file->Find("a")->bytes, 20);
  std::vector<float> out(10);
  ASSERT_TRUE(file->Read("a", out).ok());
  EXPECT_EQ(out[0], 1.5f);
  EXPECT_TRUE(out[1] == 0 && std::signbit(out[1]));
  EXPECT_EQ(out[2], 1.0f);       // halfway: to the even one, below
  EXPECT_EQ(out[3], 0x1.04p0f);  // halfway: to the even one, above
  EXPECT_EQ(out[4], 0x1.02p0f);
  EXPECT_EQ(out[5], 1.0f);
  EXPECT_EQ(out[6], inf);  // nearer to 2^128 than to the largest one
  EXPECT_EQ(out[7], -inf);
  EXPECT_TRUE(std::isnan(out[8]));
  EXPECT_EQ(out[9], 0x1p-133f);  // the smallest subnormal
}

TEST(Safetensors, ComeBackTheSame) {
  const TemporaryFolder folder;
  const float a[4] = {1, 2, 3, 4};
  const float b[2] = {5, 6};
  const std::string path = folder / "m.safetensors";
  ASSERT_TRUE(WriteSafetensors(path, std::vector<TensorData>{{"b", {2, 2}, a}, {"a", {2}, b}}, {{"k", "v"}}).ok());
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->tensors()[0].name, "b");  // in the order they were written
  EXPECT_EQ(file->tensors()[0].dtype, "F32");
  EXPECT_THAT(file->tensors()[0].shape, ElementsAre(2, 2));
  EXPECT_EQ(file->tensors()[0].offset % 8, 0);
  EXPECT_EQ(file->metadata().at("k"), "v");
  std::vector<float> out(4);
  ASSERT_TRUE(file->Read("b", out).ok());
  EXPECT_THAT(out, ElementsAre(1, 2, 3, 4));
}

TEST(Safetensors, HalvesAreWidenedExactly) {
  const TemporaryFolder folder;
  const uint16_t bits[8] = {0x3c00, 0xc000, 0x0001, 0x7c00, 0x03ff, 0x8000, 0x7e00, 0x3555};
  const std::string values(reinterpret_cast<const char*>(bits), sizeof bits);
  const std::string path =
      folder.Write("m.safetensors", FileOf(R"({"h":{"dtype":"F16","shape":[8],"data_offsets":[0,16]},)"
                                           R"("b":{"dtype":"BF16","shape":[2,4],"data_offsets":[16,32]}})",
                                           values + values));
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<float> out(8);
  ASSERT_TRUE(file->Read("h", out).ok());
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -2.0f);
  EXPECT_EQ(out[2], 0x1p-24f);
  EXPECT_EQ(out[3], std::numeric_limits<float>::infinity());
  EXPECT_EQ(out[4], 0x3ffp-24f);
  EXPECT_TRUE(out[5] == 0 && std::signbit(out[5]));
  EXPECT_TRUE(std::isnan(out[6]));
  EXPECT_EQ(out[7], 0x1.554p-2f);
  ASSERT_TRUE(file->Read("b", out).ok());
  EXPECT_EQ(out[0], 0x1p-7f);
  EXPECT_EQ(out[1], -2.0f);
}

TEST(Safetensors, ReadNamesTheTensorThatDoesNotFit) {
  const TemporaryFolder folder;
  const std::string path =
      folder.Write("m.safetensors", FileOf(R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                                           R"("f":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
                                           std::string(16, '\0')));
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<float> out(1);
  EXPECT_EQ(file->Read("x", out).message(), path + ": tensor x is missing");
  EXPECT_EQ(file->Read("i", out).message(), path + ": tensor i: expected F32, F16 or BF16, got I64");
  EXPECT_EQ(file->Read("f", out).message(), path + ": tensor f: expected 1 values, got 2");
}

TEST(Safetensors, FileThatIsCutWhileOpenIsAnError) {
  const TemporaryFolder folder;
  const float a[4] = {1, 2, 3, 4};
  const std::string path = folder / "m.safetensors";
  ASSERT_TRUE(WriteSafetensors(path, std::vector<TensorData>{{"a", {4}, a}}, {}).ok());
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);
  std::vector<float> out(4);
  EXPECT_EQ(file->Read("a", out).code(), absl::StatusCode::kDataLoss);
}

struct Hostile {
  const char* name;
  const char* header;
  const char* error;  // after the file's name
};

class SafetensorsRefuses : public testing::TestWithParam<Hostile> {};

TEST_P(SafetensorsRefuses, NamingFileAndTensor) {
  EXPECT_THAT(ErrorOfTensors(FileOf(GetParam().header, std::string(8, '\0'))),
              EndsWith(std::string("m.safetensors: ") + GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    Header, SafetensorsRefuses,
    testing::Values(
        Hostile{"NoJson", "{\"a\":", "header: expected JSON, line 1, column 6: got the end of the text"},
        Hostile{"NoObject", "[]", "expected a header that is a JSON object"},
        Hostile{"NoFields", R"({"a":{"dtype":"F32"}})", "tensor a: expected dtype, shape and data_offsets"},
        Hostile{"NoTensor", R"({"a":5})", "tensor a: expected dtype, shape and data_offsets"},
        Hostile{"Dtype", R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})",
                "tensor a: expected a known dtype, got \"F31\""},
        Hostile{"NegativeShape", R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",
                "tensor a: expected a shape of whole numbers"},
        Hostile{"HugeExtent", R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})",
                "tensor a: expected a shape of whole numbers"},
        Hostile{"OverflowingShape", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
                "tensor a: expected data_offsets as long as F32 [4294967296,4294967296], got 8 bytes"},
        Hostile{"WrongSize", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})",
                "tensor a: expected data_offsets as long as F32 [1], got 8 bytes"},
        Hostile{"BeyondTheEnd", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})",
                "tensor a: expected data_offsets [begin, end] within the file's 8 bytes of values, got [0,12]"},
        Hostile{"Backwards", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",
                "tensor a: expected data_offsets [begin, end] within the file's 8 bytes of values, got [8,0]"},
        Hostile{"OneOffset", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})",
                "tensor a: expected data_offsets [begin, end] within the file's 8 bytes of values, got [0]"},
        Hostile{"Overlap",
                R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                "tensor b: expected its values at 8, got 4"},
        Hostile{"Gap", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                "tensor a: expected its values at 0, got 4"},
        Hostile{"Rest", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                "expected 4 bytes of values, got 8"},
        Hostile{"Metadata", R"({"__metadata__":5})", "__metadata__: expected an object of texts"},
        Hostile{"MetadataValue", R"({"__metadata__":{"k":5}})", "__metadata__: k: expected a text"}),
    [](const testing::TestParamInfo<Hostile>& info) { return std::string(info.param.name); });

TEST(Safetensors, HeaderLengthBeyondTheFileIsRefusedBeforeItIsRead) {
  EXPECT_THAT(ErrorOfTensors("abc"), EndsWith("expected a safetensors file, got 3 bytes"));
  EXPECT_THAT(ErrorOfTensors(std::string(8, '\xff') + "{}"),
              EndsWith("expected a header of at most 2 bytes, got 18446744073709551615"));
}

TEST(Safetensors, DeeplyNestedHeaderIsRefused) {
  EXPECT_THAT(ErrorOfTensors(FileOf(std::string(200'000, '['), "")),
              HasSubstr("header: expected JSON, line 1, column 65: got more than 64 lists and objects in each other"));
}

TEST(Safetensors, TruncationAtAnyLengthIsRefused) {
  const TemporaryFolder folder;
  const float a[3] = {1, 2, 3};
  ASSERT_TRUE(WriteSafetensors(folder / "m", std::vector<TensorData>{{"a", {3}, a}}, {{"k", "v"}}).ok());
  const std::string whole = ReadAll(folder / "m");
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THAT(ErrorOfTensors(whole.substr(0, length)), AllOf(HasSubstr("m.safetensors: "), HasSubstr("expected")))
        << length;
  }
  EXPECT_EQ(ErrorOfTensors(whole), "accepted");
}

TEST(Safetensors, AnyChangedHeaderByteIsRefusedOrRead) {
  const TemporaryFolder folder;
  const float a[3] = {1, 2, 3};
  ASSERT_TRUE(WriteSafetensors(folder / "m", std::vector<TensorData>{{"a", {3}, a}}, {{"k", "v"}}).ok());
  const std::string whole = ReadAll(folder / "m");
  for (size_t i = 0; i + sizeof a < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x11);
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(folder.Write("changed", changed));
    if (!file.ok() || file->tensors().empty()) continue;
    std::vector<float> out(3);
    const absl::Status read = file->Read(file->tensors()[0].name, out);  // must not reach beyond what it was given
    EXPECT_TRUE(read.ok() || !read.message().empty());
  }
}

}  // namespace
}  // namespace causeway::formats
