#include "worker/data/evaluation.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "core/random.h"
#include "formats/export_form.h"
#include "formats/hf_config.h"
#include "formats/model_directory.h"

namespace causeway::worker {
namespace {

constexpr int64_t kLargestBigramVocabulary = 4096;
constexpr double kTemperature = 0.8;

// Draws from p^(1/temperature), normalized, with one uniform number.
int32_t Draw(std::span<const float> probabilities, double uniform) {
  std::vector<double> cumulative;
  double sum = 0;
  for (float p : probabilities) cumulative.push_back(sum += std::pow(static_cast<double>(p), 1 / kTemperature));
  const auto drawn = std::ranges::upper_bound(cumulative, uniform * sum);
  return static_cast<int32_t>(std::min<std::ptrdiff_t>(drawn - cumulative.begin(), std::ssize(cumulative) - 1));
}

// The first whole line of the held-out text, or as much of it as fits in half a sequence.
std::vector<int32_t> HeldOutPrompt(const Corpus& corpus) {
  int64_t begin = corpus.held_out().begin;
  while (begin < corpus.size() && corpus[begin] != '\n') ++begin;
  std::vector<int32_t> prompt = {'\n'};
  for (int64_t i = begin + 1; i < corpus.size() && std::ssize(prompt) <= corpus.sequence() / 2; ++i) {
    prompt.push_back(corpus[i]);
    if (corpus[i] == '\n') break;
  }
  return prompt;
}

std::string SampleText(const core::LlamaConfig& config, const Corpus& corpus, const Tensors& weights,
                       const EvaluateOptions& options) {
  std::string text;
  for (int32_t token : Sample(config, corpus.sequence(), weights, HeldOutPrompt(corpus), options)) {
    text.push_back(static_cast<char>(token));
  }
  return text;
}

absl::StatusOr<std::shared_ptr<const Corpus>> OpenCorpus(const core::LlamaConfig& config, const std::string& path,
                                                         const EvaluateOptions& options) {
  const int64_t sequence = options.sequence_length == 0 ? config.max_position_embeddings : options.sequence_length;
  if (sequence < 1 || sequence > config.max_position_embeddings) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--sequence_length: expected 1 to %d (max_position_embeddings), "
                        "got %d",
                        config.max_position_embeddings, sequence));
  }
  return Corpus::Open(path, {config.vocab_size, options.token_bytes}, sequence, options.held_out);
}

}  // namespace

Batch HeldOut::Rows(int64_t first, int64_t count) const {
  Batch batch;
  for (int64_t row = first; row < first + count; ++row) {
    corpus->AppendRow(corpus->HeldOutWindow(std::min(row, windows - 1), windows), batch);
  }
  return batch;
}

HostEvaluator::HostEvaluator(const core::LlamaConfig& config, HeldOut held_out, int64_t batch_rows)
    : held_out_(std::move(held_out)),
      batch_rows_(batch_rows),
      model_(config, batch_rows, held_out_.corpus->sequence(), LlamaModel::Use::kForwardOnly) {}

absl::StatusOr<double> HostEvaluator::Loss(const Tensors& weights) {
  double sum = 0;
  for (int64_t first = 0; first < held_out_.windows; first += batch_rows_) {
    sum += model_.Forward(weights, held_out_.Rows(first, batch_rows_));
  }
  return sum * static_cast<double>(batch_rows_) / static_cast<double>(held_out_.windows);
}

absl::StatusOr<double> BigramLoss(const Corpus& corpus, int64_t vocab_size, int64_t batches, int64_t batch_rows) {
  if (vocab_size > kLargestBigramVocabulary) {
    return absl::InvalidArgumentError(absl::StrFormat("a bigram table: expected a vocabulary of at most %d, got %d",
                                                      kLargestBigramVocabulary, vocab_size));
  }
  std::vector<double> pairs(vocab_size * vocab_size, 0.5);
  std::vector<double> firsts(vocab_size, 0.5 * static_cast<double>(vocab_size));
  for (int64_t i = 0; i + 1 < corpus.training().end; ++i) {
    pairs[corpus[i] * vocab_size + corpus[i + 1]] += 1;
    firsts[corpus[i]] += 1;
  }
  const int64_t windows = batches * batch_rows;
  double sum = 0;
  for (int64_t window = 0; window < windows; ++window) {
    const int64_t begin = corpus.HeldOutWindow(window, windows);
    for (int64_t i = begin; i < begin + corpus.sequence(); ++i) {
      sum -= std::log(pairs[corpus[i] * vocab_size + corpus[i + 1]] / firsts[corpus[i]]);
    }
  }
  return sum / static_cast<double>(windows * corpus.sequence());
}

// The whole context is recomputed for each token: values after it in the row are in the future and do not count.
std::vector<int32_t> Sample(const core::LlamaConfig& config, int64_t sequence, const Tensors& weights,
                            std::vector<int32_t> prompt, const EvaluateOptions& options) {
  CHECK(!prompt.empty());
  LlamaModel model(config, 1, sequence, LlamaModel::Use::kForwardOnly);
  const size_t prompt_size = prompt.size();
  std::vector<int32_t>& text = prompt;
  for (int64_t i = 0; i < options.sample_bytes; ++i) {
    const int64_t context = std::min<int64_t>(std::ssize(text), sequence);
    Batch batch{std::vector<int32_t>(sequence), std::vector<int32_t>(sequence)};
    std::copy(text.end() - context, text.end(), batch.tokens.begin());
    model.Forward(weights, batch);
    const auto next = model.probabilities().subspan((context - 1) * config.vocab_size, config.vocab_size);
    text.push_back(Draw(next, core::UnitInterval(core::HashCombine(options.seed, static_cast<uint64_t>(i)))));
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt_size), text.end()};
}

absl::StatusOr<std::string> EvaluateDirectory(const std::string& dir, const std::string& data_path,
                                              const EvaluateOptions& options) {
  ASSIGN_OR_RETURN(const core::LlamaConfig config, formats::ReadHfConfig(dir + "/config.json"));
  const core::Manifest manifest = core::LlamaManifest(config);
  TensorValues parameters(manifest);
  RETURN_IF_ERROR(formats::ReadModelDirectory(dir, manifest, parameters.MutableView()));
  ASSIGN_OR_RETURN(const std::shared_ptr<const Corpus> corpus, OpenCorpus(config, data_path, options));
  HostEvaluator evaluator(config, {corpus, options.batches * options.batch_rows}, options.batch_rows);
  ASSIGN_OR_RETURN(const double loss, evaluator.Loss(parameters.View()));
  const absl::StatusOr<double> bigram = BigramLoss(*corpus, config.vocab_size, options.batches, options.batch_rows);

  nlohmann::ordered_json result = {
      {"eval_loss", loss}, {"bigram_loss", nullptr}, {"bits_per_byte", nullptr}, {"sample", nullptr}};
  if (bigram.ok()) result["bigram_loss"] = *bigram;
  if (config.vocab_size == formats::kByteVocabulary) {
    result["bits_per_byte"] = loss / std::numbers::ln2;
    result["sample"] = SampleText(config, *corpus, parameters.View(), options);
  }
  return result.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace causeway::worker
