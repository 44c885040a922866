#include <gmock/gmock-matchers.h>
#include <gmock/gmock-more-matchers.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "formats/file_kind.h"
#include "formats/hf_config.h"
#include "formats/named_file.h"
#include "formats/run_advice.h"
#include "formats/token_looks.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using core::CodecId;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::string_view_literals;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

core::RunConfig Config(int64_t steps, int64_t sync_every, int fragments) {
  core::RunConfig config;
  config.steps = steps;
  config.sync.sync_every = sync_every;
  config.sync.num_fragments = fragments;
  return config;
}

std::string Mistake(const core::RunConfig& config) {
  const Origin origin;
  FieldCheck check(origin);
  CheckSteps(config, check);
  return std::string(check.status().message());
}

TEST(StepsCheck, RunThatEndsBeforeItsFirstSendIsRefusedWithTheStepsThatItNeeds) {
  EXPECT_THAT(
      Mistake(Config(10, 20, 1)),
      HasSubstr("run.steps: expected at least 20, when fragment 0 is sent for the first time (sync.sync_every is 20), "
                "or 0, without an end, got 10"));
  EXPECT_EQ(Mistake(Config(20, 20, 1)), "");
}

TEST(StepsCheck, TheLastFragmentToBeSentDecides) {
  EXPECT_THAT(Mistake(Config(34, 20, 4)), HasSubstr("at least 35, when fragment 2 is sent"));
  EXPECT_EQ(Mistake(Config(35, 20, 4)), "");
  core::RunConfig config = Config(20, 20, 4);
  config.sync.first_send = core::FirstSend::kOffset;
  EXPECT_EQ(Mistake(config), "");
  config.sync.fragment_offsets = {3, 19, 7, 1};
  config.steps = 18;
  EXPECT_THAT(Mistake(config), HasSubstr("at least 19, when fragment 1 is sent"));
}

TEST(StepsCheck, RunWithoutAnEndIsFine) {
  EXPECT_EQ(Mistake(Config(0, 20, 4)), "");
  EXPECT_THAT(StepsAdvice(Config(0, 20, 4)), IsEmpty());
}

TEST(StepsAdvice, StepsBehindTheLastSendAreCounted) {
  EXPECT_THAT(StepsAdvice(Config(10, 4, 1)),
              ElementsAre(HasSubstr("the last 2 steps come after the last send, at step 8")));
  EXPECT_THAT(StepsAdvice(Config(12, 4, 1)), IsEmpty());
  EXPECT_THAT(StepsAdvice(Config(1000, 20, 4)), IsEmpty());
  EXPECT_THAT(StepsAdvice(Config(1003, 20, 4)), ElementsAre(HasSubstr("the last 3 steps")));
}

TEST(CodecAdvice, HasNoneForTheDefaultsNorForOneBitWithoutFeedback) {
  EXPECT_THAT(CodecAdvice({}), IsEmpty());
  EXPECT_THAT(CodecAdvice({CodecId::kRotatedSign, CodecId::kSign, 0, 0}), IsEmpty());
  EXPECT_THAT(CodecAdvice({.exempt = {core::TensorKind::kNorm}}), IsEmpty());
}

TEST(CodecAdvice, NamesTheLegWhereOneBitHasFeedback) {
  EXPECT_THAT(CodecAdvice({CodecId::kInt4, CodecId::kRotatedSign, 1, 1}),
              ElementsAre(HasSubstr("codec.feedback_down is 1 with rotated_sign: at 1 bit 0 trains better")));
}

TEST(CodecAdvice, HasNoneForOneBitThatAutoFallsBackTo) {
  core::CodecConfig codec{CodecId::kRotatedSign, CodecId::kRotatedSign};
  codec.allow_up = codec.allow_down = {CodecId::kRotatedLm2, CodecId::kRotatedSign};
  EXPECT_THAT(CodecAdvice(codec), IsEmpty());
  codec.allow_up = {CodecId::kRotatedSign};
  EXPECT_THAT(CodecAdvice(codec), ElementsAre(HasSubstr("codec.feedback_up is 1 with rotated_sign")));
}

TEST(CodecAdvice, WarnsThatTopkWithoutFeedbackLosesValues) {
  EXPECT_THAT(CodecAdvice({CodecId::kTopk, CodecId::kInt4, 0, 1}),
              ElementsAre(HasSubstr("codec.feedback_up is 0 with topk")));
}

TEST(CodecAdvice, SaysThatExemptLowersFloat32) {
  EXPECT_THAT(CodecAdvice({CodecId::kFloat32, CodecId::kInt4, 0, 1, {core::TensorKind::kNorm}}),
              ElementsAre(HasSubstr("codec.exempt lowers")));
}

TEST(RunAdvice, HasTheDoubtsAboutCodecsAndThoseAboutSteps) {
  core::RunConfig config;
  config.steps = 10;
  config.sync.sync_every = 4;
  config.sync.num_fragments = 1;
  config.codec = {CodecId::kTopk, CodecId::kInt4, 0, 1};
  EXPECT_THAT(RunAdvice(config), ElementsAre(HasSubstr("feedback_up"), HasSubstr("the last 2 steps")));
}

// Tokens of a text, in which small numbers are frequent, as those of a tokenizer are.
std::vector<int64_t> TokensOfAText(int64_t count, int64_t vocabulary) {
  std::mt19937 random(7);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    const double share = std::uniform_real_distribution<>(0, 1)(random);
    tokens.push_back(static_cast<int64_t>(std::pow(static_cast<double>(vocabulary), share)) - 1);
  }
  return tokens;
}

template <typename Value>
std::string As(const std::vector<int64_t>& tokens, bool big_endian = false) {
  std::string bytes;
  for (const int64_t token : tokens) {
    const auto value = static_cast<Value>(token);
    std::string one(reinterpret_cast<const char*>(&value), sizeof value);
    bytes += big_endian ? std::string(one.rbegin(), one.rend()) : one;
  }
  return bytes;
}

// The upper half of a float32: bfloat16, cut off.
std::string AsBfloat16(const std::vector<int64_t>& tokens) {
  std::string bytes;
  for (const int64_t token : tokens) bytes += As<float>({token}).substr(2);
  return bytes;
}

std::string_view Look(const std::string& bytes) { return LookOfTokens(std::as_bytes(std::span<const char>(bytes))); }

TEST(TokenLooks, EachTypeIsToldForFewTokensAndManyAndForEachVocabulary) {
  for (const int64_t vocabulary : {65, 256, 1'000, 50'257, 128'256}) {
    for (const int64_t count : {8, 600, 20'001}) {
      const std::vector<int64_t> tokens = TokensOfAText(count, vocabulary);
      const auto where = testing::Message() << count << " tokens below " << vocabulary;
      EXPECT_EQ(Look(As<int64_t>(tokens)), "int64") << where;
      EXPECT_EQ(Look(As<int64_t>(tokens, true)), "big-endian int64") << where;
      EXPECT_EQ(Look(As<double>(tokens)), "float64") << where;
      EXPECT_EQ(Look(As<double>(tokens, true)), "big-endian float64") << where;
      EXPECT_EQ(Look(As<float>(tokens)), "float32") << where;
      EXPECT_EQ(Look(As<float>(tokens, true)), "big-endian float32") << where;
      if (vocabulary > 65'536) continue;
      EXPECT_EQ(Look(As<int32_t>(tokens)), "uint32") << where;
      EXPECT_EQ(Look(As<int32_t>(tokens, true)), "big-endian uint32") << where;
      EXPECT_EQ(Look(As<uint16_t>(tokens)), "") << where;
      if (count < 600) continue;
      EXPECT_EQ(Look(As<uint16_t>(tokens, true)), "big-endian uint16") << where;
      EXPECT_EQ(Look(AsBfloat16(TokensOfAText(count, 256))), "bfloat16") << where;
    }
  }
}

TEST(TokenLooks, PaddingBelowZeroIsThatOfAWiderType) {
  EXPECT_EQ(Look(As<int64_t>({5, 9, -100, -1})), "int64");
  EXPECT_EQ(Look(As<int32_t>({5, 9, -100, -1})), "uint32");
  EXPECT_EQ(Look(As<float>({5, 9, -100, -1})), "float32");
}

TEST(TokenLooks, TypesAreToldOfEvenlySpreadTokensToo) {
  std::vector<int64_t> tokens, large, bytes;
  std::mt19937 random(3);
  for (int64_t i = 0; i < 5'000; ++i) tokens.push_back(static_cast<int64_t>(random() % 50'257));
  for (int64_t i = 0; i < 5'000; ++i) large.push_back(static_cast<int64_t>(random() % 128'256));
  for (int64_t i = 0; i < 5'000; ++i) bytes.push_back(static_cast<int64_t>(random() % 65));
  EXPECT_EQ(Look(As<uint16_t>(tokens)), "");
  EXPECT_EQ(Look(As<uint16_t>(tokens, true)), "big-endian uint16");
  EXPECT_EQ(Look(As<uint32_t>(large)), "uint32") << "where each second uint16 is 0 or 1";
  EXPECT_EQ(Look(As<uint32_t>(large, true)), "big-endian uint32");
  EXPECT_EQ(Look(As<float>(large, true)), "big-endian float32");
  EXPECT_EQ(Look(As<uint16_t>(bytes)), "");
  EXPECT_EQ(Look(As<uint8_t>(bytes)), "uint8");
}

TEST(TokenLooks, TextAndZerosAreToldAndEvenlySpreadTokensAreNot) {
  std::string text;
  while (text.size() < 100) text += "A line of text; é.\n";
  EXPECT_EQ(Look(text), "text");
  EXPECT_EQ(Look(std::string(64, '\0')), "zeros alone");
  std::vector<int64_t> all, some;
  for (int64_t i = 0; i < 65'536; ++i) all.push_back(i * 7 % 65'536);
  for (int64_t i = 0; i < 1'000; ++i) some.push_back(60'000 + i);
  EXPECT_EQ(Look(As<uint16_t>(all)), "");
  EXPECT_EQ(Look(As<uint16_t>(some)), "");
  EXPECT_EQ(Look(As<uint16_t>(std::vector<int64_t>(1'000, 50'256))), "") << "one token";
}

TEST(TokenLooks, TokensOfALargeVocabularyFitInOneOrderOfBytesAlone) {
  const std::string swapped = As<uint32_t>(TokensOfAText(100, 128'256), true);
  const auto bytes = std::as_bytes(std::span<const char>(swapped));
  EXPECT_TRUE(FitsBigEndian(bytes, 4, 128'256));
  EXPECT_FALSE(FitsBigEndian(bytes, 4, 1'000));
  EXPECT_FALSE(FitsBigEndian(bytes.first(16), 4, 128'256)) << "too few to tell";
}

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span<const char>(text)); }

// The kind of a file that begins so, in the words of a message.
std::string NameOf(std::string_view begin, std::string_view end = "") {
  const std::string file = std::string(begin).append(600, '\1').append(end);
  const FileKind* kind = RecognizeFile(Bytes(file));
  return kind == nullptr ? "none" : std::string(kind->name);
}

TEST(FileKind, CompressedFilesAndArchivesAreKnownByTheirFirstBytes) {
  EXPECT_EQ(NameOf("\x1F\x8B\x08\x08\x91\xB2\x6A\x69\x02\xFF"sv), "a gzip file (.gz)");
  EXPECT_EQ(NameOf("\x28\xB5\x2F\xFD\x24\x05"sv), "a zstd file (.zst)");
  EXPECT_EQ(NameOf("\x5D\x2A\x4D\x18\x04\0\0\0"sv), "a zstd file (.zst)") << "as parallel compressors begin one";
  EXPECT_EQ(NameOf("\xFD"
                   "7zXZ\0\0\4"sv),
            "an xz file (.xz)");
  EXPECT_EQ(NameOf("BZh91AY&SY"sv), "a bzip2 file (.bz2)");
  EXPECT_EQ(NameOf("\x04\x22\x4D\x18\x64\x40"sv), "an lz4 file (.lz4)");
  EXPECT_EQ(NameOf("PK\3\4\x14\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\5\0\0\0a.txt"sv), "a zip archive");
  EXPECT_EQ(NameOf(std::string("tokens/train.bin").append(241, '\0') + "ustar"), "a tar archive (.tar)");
}

TEST(FileKind, FilesOfOtherLibrariesAreKnown) {
  EXPECT_EQ(NameOf("PAR1\x15\4"sv), "a Parquet file (.parquet)");
  EXPECT_EQ(NameOf("\x89HDF\r\n\x1A\n"sv), "an HDF5 file (.h5)");
  EXPECT_EQ(NameOf("\x93NUMPY\1\0v\0"sv), "a NumPy array (.npy)");
  EXPECT_EQ(NameOf("PK\3\4\x2D\0\0\0\0\0\0\0!\0\0\0\0\0\0\0\0\0\0\0\0\0\7\0\0\0ids.npy"sv),
            "an archive of NumPy arrays (.npz)");
  EXPECT_EQ(NameOf("PK\3\4\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0E\0\0\0model/data.pkl"sv),
            "a file of torch.save (a zip archive)");
  EXPECT_THAT(NameOf("\x80\4\x95\x15\0\0\0\0\0\0\0]"sv), HasSubstr("a pickle of Python"));
  EXPECT_THAT(NameOf("\x80\3]q\0"sv, "e."), HasSubstr("a pickle of Python"));
  EXPECT_EQ(NameOf("\xFF\xFF\xFF\xFF\xF0\0\0\0\x10\0\0\0"sv), "an Arrow file, as Hugging Face's datasets keep them");
  EXPECT_EQ(NameOf("\x40\0\0\0\0\0\0\0{\"a\":"sv), "a safetensors file");
  EXPECT_EQ(NameOf("SQLite format 3\0"sv), "an SQLite database");
}

TEST(FileKind, FilesThatStandForAnotherAreKnown) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n";
  ASSERT_NE(RecognizeFile(Bytes(pointer)), nullptr);
  EXPECT_TRUE(RecognizeFile(Bytes(pointer))->stands_in);
  EXPECT_EQ(NameOf("\n<!DOCTYPE html>\n<html>"), "a web page (HTML)");
  EXPECT_EQ(NameOf("<HTML><head>"), "a web page (HTML)");
  EXPECT_THAT(NameOf("<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code>"), HasSubstr("an object store"));
  EXPECT_EQ(NameOf("<?xml version=\"1.0\"?>\n<corpus>"), "none");
}

TEST(FileKind, TextsAndTokensAreOfNoKnownKind) {
  for (const char* text :
       {"It rains.", "{\"text\": \"\"}", "[1, 2]", "PK", "BZh9 is a name", "version 2", "<a>", "GIF"}) {
    EXPECT_EQ(NameOf(text), "none") << text;
  }
  EXPECT_EQ(RecognizeFile({}), nullptr);
  std::mt19937 random(1);
  std::string tokens(512, '\0');
  for (int i = 0; i < 100'000; ++i) {
    for (size_t at = 0; at < 16; ++at) tokens[at] = static_cast<char>(random());
    EXPECT_EQ(RecognizeFile(Bytes(tokens)), nullptr) << tokens.substr(0, 16);
  }
}

TEST(TextFile, OneOfWindowsIsReadWithoutItsMarkAndOneOfAnotherKindIsNamed) {
  const TemporaryFolder folder;
  EXPECT_EQ(*ReadTextFile(folder.Write("a", "\xEF\xBB\xBFlayers"), 100), "layers");
  const auto error = [&](std::string_view contents) {
    return std::string(ReadTextFile(folder.Write("a", contents), 100).status().message());
  };
  EXPECT_THAT(error("\xFF\xFEl\0a\0"sv), HasSubstr("a: expected text, got text in UTF-16: write it as UTF-8: iconv"));
  EXPECT_THAT(error("<!doctype html>"), HasSubstr("expected text, got a web page (HTML): it came instead of the file"));
}

constexpr char kRequired[] =
    R"("model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
       "num_attention_heads": 2)";

std::string ErrorOfJson(const std::string& json) {
  const TemporaryFolder folder;
  const absl::StatusOr<core::LlamaConfig> llama = ReadHfConfig(folder.Write("config.json", json));
  return llama.ok() ? "accepted" : std::string(llama.status().message());
}

std::string ErrorWith(const std::string& keys) { return ErrorOfJson(std::string("{") + kRequired + ", " + keys + "}"); }

TEST(HfConfig, ComesBackTheSame) {
  const core::LlamaConfig llama{.hidden_size = 64,
                                .intermediate_size = 100,
                                .num_hidden_layers = 2,
                                .num_attention_heads = 8,
                                .num_key_value_heads = 2,
                                .vocab_size = 1000,
                                .max_position_embeddings = 32,
                                .rms_norm_eps = 1e-6,
                                .rope_theta = 5e5,
                                .tie_word_embeddings = false};
  const TemporaryFolder folder;
  const absl::StatusOr<core::LlamaConfig> read = ReadHfConfig(folder.Write("config.json", HfConfigJson(llama)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, llama);
}

TEST(HfConfig, SaysWhatTransformersAsksFor) {
  const nlohmann::json json = nlohmann::json::parse(HfConfigJson({}));
  EXPECT_EQ(json["architectures"], nlohmann::json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(json["model_type"], "llama");
  EXPECT_EQ(json["hidden_act"], "silu");
  EXPECT_EQ(json["torch_dtype"], "float32");
  EXPECT_EQ(json["attention_bias"], false);
  EXPECT_EQ(json["tie_word_embeddings"], true);
  EXPECT_EQ(json["rms_norm_eps"], 1e-5);
  EXPECT_EQ(json["head_dim"], 32);
}

TEST(HfConfig, DifferenceIsNamedByKey) {
  EXPECT_EQ(HfConfigDifference({}, {}), "");
  EXPECT_EQ(HfConfigDifference({}, {.init_from = "elsewhere"}), "");
  EXPECT_EQ(HfConfigDifference({}, {.vocab_size = 300}), "vocab_size: expected 256, got 300");
  EXPECT_EQ(HfConfigDifference({.rope_theta = 5e5}, {}), "rope_theta: expected 500000.0, got 10000.0");
}

TEST(HfConfig, AbsentKeysTakeTransformersDefaults) {
  const TemporaryFolder folder;
  const absl::StatusOr<core::LlamaConfig> read =
      ReadHfConfig(folder.Write("config.json", std::string("{") + kRequired + R"(, "rope_scaling": null})"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->num_key_value_heads, 2);
  EXPECT_EQ(read->vocab_size, 32000);
  EXPECT_EQ(read->rms_norm_eps, 1e-6);
  EXPECT_FALSE(read->tie_word_embeddings);
}

TEST(HfConfig, RopeThetaStandsInEitherPlace) {
  const TemporaryFolder folder;
  const auto theta = [&](const std::string& keys) {
    const auto read = ReadHfConfig(folder.Write("config.json", std::string("{") + kRequired + ", " + keys + "}"));
    return read.ok() ? read->rope_theta : -1;
  };
  EXPECT_EQ(theta(R"("rope_theta": 5e5)"), 5e5);
  EXPECT_EQ(theta(R"("rope_parameters": {"rope_type": "default", "rope_theta": 1e6})"), 1e6);
}

TEST(HfConfig, Llama3RopeScalingStandsInEitherPlace) {
  const core::RopeScaling expected{32, 1, 4, 8192};
  const std::string values =
      R"("factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})";
  const TemporaryFolder folder;
  for (const char* begin :
       {R"("rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", )",
        R"("rope_theta": 5e5, "rope_scaling": {"type": "llama3", )",
        R"("rope_scaling": null, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, )"}) {
    const auto read =
        ReadHfConfig(folder.Write("config.json", std::string("{") + kRequired + ", " + begin + values + "}"));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->rope_theta, 5e5);
    EXPECT_EQ(read->rope_scaling, expected);
    const auto again = ReadHfConfig(folder.Write("config.json", HfConfigJson(*read)));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *read);
  }
}

TEST(HfConfig, WhatCannotBeTrainedIsRefusedByKey) {
  EXPECT_THAT(ErrorOfJson("{"), EndsWith("config.json: expected JSON, line 1, column 2: got the end of the text"));
  EXPECT_THAT(ErrorOfJson("{}"), EndsWith("config.json: model_type: expected llama, got none"));
  const std::string instead = "; for that use the Python package (model: {kind: external})";
  EXPECT_THAT(ErrorOfJson(R"({"model_type": "gpt2"})"),
              EndsWith(R"(model_type: expected "llama", got "gpt2")" + instead));
  EXPECT_THAT(ErrorOfJson(R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})"),
              EndsWith(R"(architectures: expected LlamaForCausalLM, got ["Qwen2ForCausalLM"])" + instead));
  EXPECT_THAT(ErrorOfJson(R"({"model_type": "llama"})"),
              AllOf(HasSubstr("hidden_size: expected an integer, got none\n"),
                    EndsWith("num_attention_heads: expected an integer, got none")));
  EXPECT_THAT(ErrorWith(R"("hidden_act": "gelu")"), EndsWith(R"(hidden_act: expected "silu", got "gelu")" + instead));
  EXPECT_THAT(ErrorWith(R"("attention_bias": true)"), EndsWith("attention_bias: expected false, got true" + instead));
  EXPECT_THAT(ErrorWith(R"("rope_scaling": {"factor": 8.0})"),
              EndsWith(R"(rope_scaling: expected none, or of rope_type llama3, got {"factor":8.0})" + instead));
  EXPECT_THAT(ErrorWith(R"("rope_scaling": 8)"),
              HasSubstr("rope_scaling: expected none, or of rope_type llama3, got 8"));
  EXPECT_THAT(
      ErrorWith(R"("rope_parameters": {"rope_type": "yarn"})"),
      EndsWith(R"(rope_parameters: expected none, or of rope_type llama3, got {"rope_type":"yarn"})" + instead));
  EXPECT_THAT(ErrorWith(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})"),
              AllOf(HasSubstr("low_freq_factor: expected a number, got none\n"),
                    EndsWith("original_max_position_embeddings: expected a number, got none")));
  EXPECT_THAT(ErrorWith(R"("head_dim": 6)"), EndsWith("head_dim: expected 4, got 6" + instead));
  EXPECT_THAT(ErrorWith(R"("vocab_size": "many")"), EndsWith(R"(vocab_size: expected an integer, got "many")"));
  EXPECT_THAT(ErrorWith(R"("vocab_size": 1.5)"), EndsWith("vocab_size: expected an integer, got 1.5"));
  EXPECT_THAT(ErrorWith(R"("rope_theta": [])"), EndsWith("rope_theta: expected a number, got []"));
  EXPECT_THAT(ErrorWith(R"("tie_word_embeddings": 1)"), EndsWith("tie_word_embeddings: expected true or false, got 1"));
  EXPECT_THAT(ErrorWith(R"("num_key_value_heads": 3)"), HasSubstr("num_key_value_heads: expected 1 to 2"));
}

}  // namespace
}  // namespace causeway::formats
