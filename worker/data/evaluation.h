// Evaluates a set of parameters: loss on held-out text, a bigram table to compare it with, and sampled text.
//
//   any values of the tensors ─► Evaluator: forward only ─► nats per token
//
// The windows are `batches` × `batch_rows` rows of the model's sequence length, evenly spaced over the held-out tail of
// the corpus: the same for every call, site and process, so that losses can be compared.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/run_config.h"
#include "worker/data/corpus.h"
#include "worker/model/llama_model.h"
#include "worker/model/tensor_values.h"

namespace causeway::worker {

// The windows of held-out text.
struct HeldOut {
  std::shared_ptr<const Corpus> corpus;
  int64_t windows = 0;

  Batch Rows(int64_t first, int64_t count) const;  // windows from `first` on; beyond the end, the last window again
};

class Evaluator {
 public:
  virtual ~Evaluator() = default;

  // Whether Loss is for the step thread, between steps, or for one thread at any time.
  virtual bool between_steps() const = 0;
  // Mean loss over all windows, nats per token, of the tensors in manifest order. An error is the device's.
  virtual absl::StatusOr<double> Loss(const Tensors& weights) = 0;
};

// On the processor, with buffers of its own, so that it may run during a step.
class HostEvaluator final : public Evaluator {
 public:
  HostEvaluator(const core::LlamaConfig& config, HeldOut held_out, int64_t batch_rows);

  bool between_steps() const override { return false; }
  absl::StatusOr<double> Loss(const Tensors& weights) override;

 private:
  const HeldOut held_out_;
  const int64_t batch_rows_;  // divides the number of windows
  LlamaModel model_;
};

// Mean loss over the same windows of a table p(b | a) = (count(a, b) + 1/2) / (count(a) + vocab_size / 2), counted on
// the training part: the loss that a model must beat to have learned more than pairs. INVALID_ARGUMENT for vocab_size
// above 4096, where the table would be larger than most models.
absl::StatusOr<double> BigramLoss(const Corpus& corpus, int64_t vocab_size, int64_t batches, int64_t batch_rows);

struct EvaluateOptions {
  int64_t token_bytes = core::DataConfig().token_bytes;  // bytes of a token in a .bin without a header
  int64_t sequence_length = 0;                           // tokens of a window; 0: max_position_embeddings
  int64_t sample_bytes = 200;
  uint64_t seed = 1;
  double held_out = core::EvalConfig().held_out;  // defaults are those of run.yaml, and so are the windows
  int64_t batches = core::EvalConfig().batches;
  int64_t batch_rows = core::InnerConfig().batch_size;
};

// Continues `prompt` (not empty) by options.sample_bytes tokens at temperature 0.8, each from at most `sequence` tokens
// before it. Depends only on its arguments.
std::vector<int32_t> Sample(const core::LlamaConfig& config, int64_t sequence, const Tensors& weights,
                            std::vector<int32_t> prompt, const EvaluateOptions& options);

// Evaluates an exported model (config.json and safetensors in `dir`) on the text at `data_path`. Gives one line of
// JSON:
//   {"eval_loss", "bigram_loss", "bits_per_byte", "sample"}
// bits_per_byte and sample are null unless the vocabulary is bytes (vocab_size 256), bigram_loss for a vocabulary too
// large for a table. The sample continues the first held-out line; bytes that are not UTF-8 are replaced by U+FFFD.
absl::StatusOr<std::string> EvaluateDirectory(const std::string& dir, const std::string& data_path,
                                              const EvaluateOptions& options);

}  // namespace causeway::worker
