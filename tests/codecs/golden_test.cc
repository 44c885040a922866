// The wire format, pinned byte by byte: tests/golden/<codec>.hex holds a chunk of every codec, <codec>_zstd.hex the
// same one compressed. They were written once and change only together with docs/wire_format.md. Another zstd may
// compress to other bytes, so of a compressed chunk only what it expands to is pinned.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "codecs/chunk.h"
#include "codecs/compression.h"
#include "tests/codecs/test_values.h"
#include "tests/folders.h"

namespace causeway::codecs {
namespace {

// Two blocks, the second partly padding; scales from 2^-3 to 2^3, zeros of both signs, a denormal and an outlier.
std::vector<float> GoldenInput() {
  std::vector<float> values = UniformValues(300, 2026);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= static_cast<float>(1 << i % 7) / 8;
  values[10] = 0.0f;
  values[11] = -0.0f;
  values[12] = 0x1p-149f;
  values[270] = -1000.0f;
  return values;
}

std::string Hex(const std::string& bytes) {
  constexpr size_t kLine = 32;
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += kLine) {
    absl::StrAppend(&text, absl::BytesToHexString(bytes.substr(at, kLine)), "\n");
  }
  return text;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

std::string GoldenChunk(core::CodecId codec) {
  const uint64_t seed = GetCodec(codec).rotates() ? RotationSeed(7, 1) : 0;
  return *EncodeChunk({codec, 3, 300, seed}, GoldenInput(), {});
}

std::string KeptPath(const std::string& name) { return InSource("tests/golden/" + name); }

// Fails with what is to be done. `actual` is left where it can be copied from.
void FailWith(const std::string& what, const std::string& name, const std::string& actual) {
  const std::string written = InBuild("golden/" + name);
  std::filesystem::create_directories(InBuild("golden"));
  std::ofstream(written) << actual;
  FAIL() << what << KeptPath(name)
         << ". Sites and coordinators of other versions would not understand each other. If this is meant: a new codec "
            "number or magic, docs/wire_format.md, then copy "
         << written;
}

class Golden : public ::testing::TestWithParam<core::CodecId> {};

TEST_P(Golden, BytesAreThoseOfTheDocumentedFormat) {
  const std::string name = absl::StrCat(core::CodecName(GetParam()), ".hex");
  const std::string actual = Hex(GoldenChunk(GetParam()));
  if (ReadFile(KeptPath(name)) == actual) return;
  FailWith(absl::StrCat("The bytes of ", core::CodecName(GetParam()), " are not those in "), name, actual);
}

INSTANTIATE_TEST_SUITE_P(Codecs, Golden, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

class GoldenCompressed : public ::testing::TestWithParam<core::CodecId> {};

TEST_P(GoldenCompressed, ExpandsToTheDocumentedChunk) {
  const std::string name = absl::StrCat(core::CodecName(GetParam()), "_zstd.hex");
  const std::string chunk = GoldenChunk(GetParam());
  const auto expanded =
      ExpandChunk(absl::HexStringToBytes(absl::StrReplaceAll(ReadFile(KeptPath(name)), {{"\n", ""}})));
  if (expanded.ok() && *expanded == chunk) return;
  FailWith(absl::StrCat("Not the chunk of ", core::CodecName(GetParam()), " (", expanded.status().ToString(),
                        ") comes out of "),
           name, Hex(CompressChunk(chunk)));
}

INSTANTIATE_TEST_SUITE_P(Codecs, GoldenCompressed,
                         ::testing::Values(core::CodecId::kBfloat16, core::CodecId::kInt8, core::CodecId::kInt4,
                                           core::CodecId::kE3m0, core::CodecId::kRotatedLm4),
                         [](const auto& test) { return CodecTestName(test.param); });

}  // namespace
}  // namespace causeway::codecs
