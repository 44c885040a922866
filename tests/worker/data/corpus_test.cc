#include "worker/data/corpus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/check.h"
#include "core/model_manifest.h"
#include "formats/hf_config.h"
#include "formats/model_export.h"
#include "tests/folders.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/model/test_values.h"
#include "worker/data/batches_ahead.h"
#include "worker/data/evaluation.h"
#include "worker/data/site_batches.h"

namespace causeway::worker {
namespace {

constexpr int64_t kSequence = 15;
constexpr int64_t kWindow = kSequence + 1;

std::shared_ptr<const Corpus> OpenText(size_t bytes, double held_out = 0.1) {
  auto corpus = Corpus::Open(WriteTemporary("corpus.txt", SmallText(bytes)), {256}, kSequence, held_out);
  EXPECT_TRUE(corpus.ok()) << corpus.status();
  return *std::move(corpus);
}

std::map<int64_t, core::SiteId> Owners(const Corpus& corpus, uint64_t seed, const std::vector<core::SiteId>& sites) {
  const auto owned = corpus.AssignSegments(seed, sites);
  EXPECT_TRUE(owned.ok()) << owned.status();
  std::map<int64_t, core::SiteId> owners;
  for (size_t i = 0; i < sites.size(); ++i) {
    for (int64_t segment : (*owned)[i]) EXPECT_TRUE(owners.emplace(segment, sites[i]).second) << "owned twice";
  }
  return owners;
}

TEST(Corpus, SegmentsCoverTheTrainingPartWithoutOverlapAndHoldFourWindows) {
  for (size_t bytes : {100u, 5'000u, 200'000u}) {
    const auto corpus = OpenText(bytes, 0.2);
    int64_t next = 0;
    for (int64_t i = 0; i < corpus->num_segments(); ++i) {
      EXPECT_EQ(corpus->Segment(i).begin, next);
      EXPECT_GE(corpus->Segment(i).size(), 4 * kWindow);
      next = corpus->Segment(i).end;
    }
    EXPECT_EQ(next, corpus->training().end);
    EXPECT_EQ(corpus->held_out().begin, next);
    EXPECT_EQ(corpus->held_out().end, static_cast<int64_t>(bytes));
  }
  EXPECT_EQ(OpenText(200'000)->num_segments(), 1024);
}

TEST(Corpus, EverySegmentHasExactlyOneOwnerAndSharesAreEven) {
  const auto corpus = OpenText(200'000);
  const auto owners = Owners(*corpus, 7, {"eu", "us", "asia"});
  EXPECT_EQ(owners.size(), 1024u);
  std::map<core::SiteId, int> counts;
  for (const auto& [segment, site] : owners) ++counts[site];
  for (const auto& [site, count] : counts) EXPECT_NEAR(count, 341, 60) << site;
}

TEST(Corpus, AJoinerTakesSegmentsAndMovesNoOther) {
  const auto corpus = OpenText(200'000);
  const auto before = Owners(*corpus, 7, {"eu", "us"});
  const auto after = Owners(*corpus, 7, {"us", "asia", "eu"});
  int moved = 0;
  for (const auto& [segment, site] : after) {
    if (site == before.at(segment)) continue;
    EXPECT_EQ(site, "asia");
    ++moved;
  }
  EXPECT_GT(moved, 200);
}

TEST(Corpus, EverySiteHasASegmentEvenWhenThereAreHardlyMoreThanSites) {
  const auto corpus = OpenText(500);  // 7 segments
  ASSERT_EQ(corpus->num_segments(), 7);
  const std::vector<core::SiteId> sites = {"a", "b", "c", "d", "e", "f", "g"};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::set<core::SiteId> served;
    for (const auto& [segment, site] : Owners(*corpus, seed, sites)) served.insert(site);
    EXPECT_EQ(served.size(), sites.size());
    EXPECT_EQ(Owners(*corpus, seed, sites), Owners(*corpus, seed, {"g", "f", "e", "d", "c", "b", "a"}));
  }
}

TEST(Corpus, TooFewTokensAreRefusedWithTheNumberNeeded) {
  const std::string path = WriteTemporary("tiny.txt", SmallText(100));
  const auto corpus = Corpus::Open(path, {256}, kSequence, 0.1);
  EXPECT_EQ(corpus.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(corpus.status().message(),
            path + ": expected at least 160 tokens for 1 site(s), sequences of 15 tokens and 0.1 held out, got 100");
  EXPECT_TRUE(Corpus::Open(WriteTemporary("enough.txt", SmallText(160)), {256}, kSequence, 0.1).ok());
}

TEST(Corpus, MoreSitesThanSegmentsAreRefusedWithTheNumberNeeded) {
  const auto corpus = OpenText(500);
  const auto owned = corpus->AssignSegments(1, {"a", "b", "c", "d", "e", "f", "g", "h"});
  EXPECT_EQ(owned.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(owned.status().message()), testing::HasSubstr("expected at least 569 tokens for 8 site(s)"));
}

TEST(Corpus, MissingAndEmptyFilesAreErrors) {
  EXPECT_FALSE(Corpus::Open(FolderOfProcess() / "is/not/there.txt", {256}, kSequence, 0.1).ok());
  EXPECT_FALSE(Corpus::Open(WriteTemporary("empty.txt", ""), {256}, kSequence, 0.1).ok());
}

TEST(Corpus, HeldOutWindowsAreSpreadOverTheTailAndStayInside) {
  const auto corpus = OpenText(5'000);
  EXPECT_EQ(corpus->HeldOutWindow(0, 8), corpus->held_out().begin);
  EXPECT_EQ(corpus->HeldOutWindow(7, 8) + kWindow, corpus->held_out().end);
  EXPECT_EQ(corpus->HeldOutWindow(0, 1), corpus->held_out().begin);
}

TEST(Corpus, AHeldOutFileIsHeldOutAsAWhole) {
  const std::string path = WriteTemporary("held_out.txt", SmallText(500));
  const auto corpus = *Corpus::OpenHeldOut(path, {256}, kSequence);
  EXPECT_EQ(corpus->HeldOutWindow(0, 8), 0);
  EXPECT_EQ(corpus->HeldOutWindow(7, 8) + kWindow, 500);
  const std::string tiny = WriteTemporary("tiny.txt", SmallText(15));
  EXPECT_EQ(Corpus::OpenHeldOut(tiny, {256}, kSequence).status().message(),
            tiny + ": expected at least 16 tokens for a sequence of 15, got 15");
}

TEST(SiteBatches, RowsOfATextOfOnesOwnBeginAnywhereInItAndCoverAllOfIt) {
  const auto corpus =
      *Corpus::Open(WriteTemporary("own.txt", SmallText(2'000)), {256}, kSequence, 0.1, core::DataMode::kOwn);
  SiteBatches batches(corpus, 3, "eu", 4);
  std::set<int64_t> begins;
  for (core::Step t = 1; t <= 6'000; ++t) {
    for (int64_t row = 0; row < 4; ++row) begins.insert(batches.RowBegin(t, row));
  }
  EXPECT_EQ(*begins.begin(), 0);
  EXPECT_EQ(*begins.rbegin(), corpus->training().end - kWindow);
  EXPECT_EQ(std::ssize(begins), corpus->training().end - kWindow + 1) << "every position that a row fits at";
}

TEST(SiteBatches, RowsLieInSegmentsOfTheSiteAndTwoSitesNeverMeet) {
  const auto corpus = OpenText(20'000);
  std::map<core::SiteId, std::set<int64_t>> read;
  for (const char* site : {"eu", "us"}) {
    SiteBatches batches(corpus, 3, site, 4);
    ASSERT_TRUE(batches.SetSites({"us", "eu"}).ok());
    for (core::Step t = 1; t <= 200; ++t) {
      for (int64_t row = 0; row < 4; ++row) {
        const int64_t begin = batches.RowBegin(t, row);
        EXPECT_LE(begin + kWindow, corpus->training().end);
        for (int64_t i = begin; i < begin + kWindow; ++i) read[site].insert(i);
      }
    }
  }
  std::vector<int64_t> both;
  std::ranges::set_intersection(read["eu"], read["us"], std::back_inserter(both));
  EXPECT_TRUE(both.empty());
  EXPECT_GT(read["eu"].size(), 5'000u);
}

TEST(SiteBatches, ARestartedWorkerReadsTheSameBatches) {
  const auto corpus = OpenText(20'000);
  SiteBatches first(corpus, 3, "eu", 4), restarted(corpus, 3, "eu", 4), other_seed(corpus, 4, "eu", 4);
  for (core::Step t = 1; t < 10; ++t) first.BatchAt(t);
  EXPECT_EQ(first.BatchAt(10).tokens, restarted.BatchAt(10).tokens);
  EXPECT_NE(first.BatchAt(10).tokens, first.BatchAt(11).tokens);
  EXPECT_NE(first.BatchAt(10).tokens, other_seed.BatchAt(10).tokens);
}

TEST(SiteBatches, TargetsAreTheTokensThatFollow) {
  const auto corpus = OpenText(20'000);
  const SiteBatches batches(corpus, 3, "eu", 2);
  const Batch batch = batches.BatchAt(5);
  ASSERT_EQ(batch.tokens.size(), 2u * kSequence);
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t i = 0; i < kSequence; ++i) {
      EXPECT_EQ(batch.tokens[row * kSequence + i], static_cast<int32_t>((*corpus)[batches.RowBegin(5, row) + i]));
      EXPECT_EQ(batch.targets[row * kSequence + i], static_cast<int32_t>((*corpus)[batches.RowBegin(5, row) + i + 1]));
    }
  }
}

// Batch t is four rows of one token, t.
class BatchesAheadTest : public ::testing::Test {
 protected:
  absl::StatusOr<Batch> Make(core::Step t) {
    ++made_;
    if (t == 9) return absl::InvalidArgumentError("no rows");
    const auto token = static_cast<int32_t>(t + offset_);
    return Batch{std::vector<int32_t>(4, token), std::vector<int32_t>(4, token)};
  }
  int32_t TokenOf(core::Step t) { return ahead_.Take(t)->front().batch.tokens.front(); }

  std::atomic<int> made_ = 0, offset_ = 0;
  BatchesAhead ahead_{[this](core::Step t) { return Make(t); }, 2, /*sorted=*/true};
};

TEST_F(BatchesAheadTest, AreThoseOfTheStepInMicroBatchesSortedByToken) {
  const auto parts = ahead_.Take(3);
  ASSERT_TRUE(parts.ok());
  ASSERT_EQ(parts->size(), 2u);
  EXPECT_EQ((*parts)[1].batch.tokens, std::vector<int32_t>(2, 3));
  EXPECT_EQ((*parts)[1].shares.order, (std::vector<int32_t>{0, 1}));
}

TEST_F(BatchesAheadTest, EachIsMadeOnceWhereStepsFollowEachOther) {
  for (core::Step t = 1; t <= 5; ++t) EXPECT_EQ(TokenOf(t), t);
  ahead_.Forget();
  EXPECT_EQ(made_, 6);  // and the one after the last
}

TEST_F(BatchesAheadTest, AnotherStepThanTheNextIsMadeThen) {
  EXPECT_EQ(TokenOf(1), 1);
  EXPECT_EQ(TokenOf(7), 7);
  EXPECT_EQ(TokenOf(2), 2);
}

TEST_F(BatchesAheadTest, OneThatWasMadeBeforeForgetIsMadeAgain) {
  EXPECT_EQ(TokenOf(1), 1);
  ahead_.Forget();
  offset_ = 100;
  EXPECT_EQ(TokenOf(2), 102);
}

TEST_F(BatchesAheadTest, AnErrorIsTheStepsOwn) {
  EXPECT_EQ(TokenOf(8), 8);
  EXPECT_EQ(ahead_.Take(9).status().message(), "no rows");
  EXPECT_EQ(TokenOf(10), 10);
}

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
