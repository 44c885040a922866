#include "worker/data/evaluation.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/model_manifest.h"
#include "formats/hf_config.h"
#include "formats/model_export.h"
#include "tests/folders.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/model/test_values.h"

namespace causeway::worker {
namespace {

// A model with weights large enough for every part of it to matter, as Hugging Face's files.
std::string ExportedModel(const std::string& name, const core::LlamaConfig& config) {
  const core::Manifest manifest = core::LlamaManifest(config);
  TensorValues weights(manifest);
  for (int i = 0; i < weights.size(); ++i) FillNormal(5, manifest[i].name, 0.3, weights[i]);
  const std::string dir = FolderOfProcess() / name;
  std::filesystem::create_directories(dir);
  std::ofstream(dir + "/config.json") << formats::HfConfigJson(config);
  EXPECT_TRUE(formats::WriteLocalDump(dir + "/model.safetensors", manifest, weights.View()).ok());
  return dir;
}

nlohmann::json Evaluate(const std::string& dir, const std::string& data, const EvaluateOptions& options) {
  const auto line = EvaluateDirectory(dir, data, options);
  EXPECT_TRUE(line.ok()) << line.status();
  return nlohmann::json::parse(*line);
}

double ReferenceLoss(const std::string& dir, const std::string& data, const std::string& raw = "uint16") {
  const std::string command = "OPENBLAS_NUM_THREADS=1 /usr/bin/python3 " +
                              InSource("tests/worker/model/reference_forward.py") + " '" + dir + "' '" + data + "' " +
                              raw;
  FILE* pipe = popen(command.c_str(), "r");
  double loss = -1;
  EXPECT_EQ(std::fscanf(pipe, "%lf", &loss), 1);
  EXPECT_EQ(pclose(pipe), 0);
  return loss;
}

void ExpectReferenceLoss(const std::string& name, const core::LlamaConfig& config) {
  const std::string dir = ExportedModel(name, config);
  const std::string data = WriteTemporary(name + ".txt", SmallText(6'000));
  const double loss = Evaluate(dir, data, {.sample_bytes = 0})["eval_loss"];
  EXPECT_GT(loss, 1);
  EXPECT_NEAR(loss, ReferenceLoss(dir, data), 1e-5);
}

TEST(Evaluation, AnIndependentForwardPassGivesTheSameLossWithATiedHead) {
  core::LlamaConfig config = TinyLlama();
  config.num_key_value_heads = 4;
  ExpectReferenceLoss("tied", config);
}

TEST(Evaluation, AnIndependentForwardPassGivesTheSameLossWithAnUntiedHead) {
  core::LlamaConfig config = TinyLlama();
  config.tie_word_embeddings = false;
  config.rms_norm_eps = 1e-3;
  config.num_key_value_heads = 4;
  ExpectReferenceLoss("untied", config);
}

TEST(Evaluation, AnIndependentForwardPassGivesTheSameLossWithGroupedKeyHeads) {
  core::LlamaConfig config = TinyLlama();
  config.max_position_embeddings = 40;
  config.rope_theta = 500;
  ExpectReferenceLoss("grouped", config);
  config.num_key_value_heads = 1;
  ExpectReferenceLoss("single", config);
}

template <typename Token>
std::string Bytes(const std::vector<uint32_t>& tokens) {
  std::string bytes;
  for (uint32_t token : tokens) {
    const Token narrow = static_cast<Token>(token);
    bytes.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
  }
  return bytes;
}

std::string LlmcHeader(int32_t magic, int32_t version, int32_t count) {
  const int32_t fields[256] = {magic, version, count};
  return std::string(reinterpret_cast<const char*>(fields), sizeof fields);
}

TEST(Evaluation, ShardsOfTokensGiveTheLossThatNumpyReadsFromThem) {
  core::LlamaConfig config = TinyLlama();
  for (const int64_t vocab_size : {3'000, 70'000}) {
    config.vocab_size = vocab_size;
    const std::string dir = ExportedModel("vocabulary" + std::to_string(vocab_size), config);
    std::vector<uint32_t> tokens;
    for (uint64_t i = 0; i < 6'000; ++i) tokens.push_back(1 + core::SplitMix64(i) % (vocab_size - 1));
    const std::string wide = Bytes<uint32_t>(tokens), narrow = Bytes<uint16_t>(tokens);
    const std::string raw = WriteTemporary("raw32.bin", wide);
    const double loss = Evaluate(dir, raw, {.token_bytes = 4, .sample_bytes = 0})["eval_loss"];
    const std::string llama3 = WriteTemporary("llama3.bin", LlmcHeader(20240801, 7, 6'000) + wide);
    EXPECT_EQ(Evaluate(dir, llama3, {.sample_bytes = 0})["eval_loss"], loss);
    EXPECT_NEAR(loss, ReferenceLoss(dir, llama3), 1e-5);
    if (vocab_size > 65'536) continue;
    EXPECT_NEAR(loss, ReferenceLoss(dir, raw, "uint32"), 1e-5);
    const std::string nanogpt = WriteTemporary("nanogpt.bin", narrow);
    EXPECT_EQ(Evaluate(dir, nanogpt, {.sample_bytes = 0})["eval_loss"], loss);
    EXPECT_NEAR(loss, ReferenceLoss(dir, nanogpt), 1e-5);
  }
}

TEST(Evaluation, ResultIsValidJsonWhateverBytesTheModelSamples) {
  const std::string dir = ExportedModel("random", TinyLlama());  // all 256 bytes are likely
  const std::string data = WriteTemporary("random.txt", SmallText(6'000));
  const nlohmann::json result = Evaluate(dir, data, {.sample_bytes = 40, .seed = 3});
  EXPECT_NEAR(result["bits_per_byte"], static_cast<double>(result["eval_loss"]) / std::log(2.0), 1e-12);
  EXPECT_GE(static_cast<std::string>(result["sample"]).size(), 40u);
  EXPECT_GT(static_cast<double>(result["bigram_loss"]), 0.5);
  EXPECT_EQ(Evaluate(dir, data, {.sample_bytes = 40, .seed = 3}), result);
  EXPECT_NE(Evaluate(dir, data, {.sample_bytes = 40, .seed = 4})["sample"], result["sample"]);
}

TEST(Evaluation, MissingDirectoryAndWrongConfigAreErrors) {
  const std::string data = WriteTemporary("some.txt", SmallText(6'000));
  EXPECT_FALSE(EvaluateDirectory(FolderOfProcess() / "no/such/model", data, {}).ok());
  const std::string dir = ExportedModel("narrow", TinyLlama());
  core::LlamaConfig wider = TinyLlama();
  wider.hidden_size = 32;
  std::ofstream(dir + "/config.json") << formats::HfConfigJson(wider);
  EXPECT_FALSE(EvaluateDirectory(dir, data, {}).ok());
}

TEST(Bigram, KnowsATextInWhichEachByteDecidesTheNext) {
  std::string text;
  while (text.size() < 40'000) text += "abcdefgh";
  const auto corpus = Corpus::Open(WriteTemporary("cycle.txt", text), {256}, 15, 0.1);
  ASSERT_TRUE(corpus.ok());
  const double smoothing = std::log((4500 + 128.0) / (4500 + 0.5));  // each pair occurs 4,500 times in training
  EXPECT_NEAR(*BigramLoss(**corpus, 256, 4, 4), smoothing, 1e-4);
}

TEST(Bigram, VocabularyTooLargeForATableIsRefused) {
  const auto corpus = Corpus::Open(WriteTemporary("cycle.txt", SmallText(2'000)), {50'257}, 15, 0.1);
  ASSERT_TRUE(corpus.ok());
  EXPECT_EQ(BigramLoss(**corpus, 50'257, 4, 4).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Sample, APromptLongerThanTheSequenceCountsByItsEnd) {
  const core::LlamaConfig config = TinyLlama();
  const core::Manifest manifest = core::LlamaManifest(config);
  TensorValues weights(manifest);
  for (int i = 0; i < weights.size(); ++i) FillNormal(5, manifest[i].name, 0.3, weights[i]);
  std::vector<int32_t> prompt(12, 'x'), longer(30, 'y');
  longer.insert(longer.end(), prompt.begin(), prompt.end());
  const std::vector<int32_t> sample = Sample(config, 12, weights.View(), prompt, {.sample_bytes = 20});
  EXPECT_EQ(sample.size(), 20u);
  EXPECT_EQ(sample, Sample(config, 12, weights.View(), longer, {.sample_bytes = 20}));
}

}  // namespace
}  // namespace causeway::worker
