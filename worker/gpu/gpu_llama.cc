#include "worker/gpu/gpu_llama.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "worker/train/llama_layers.h"

namespace causeway::worker {
namespace {

using offload::Queue;

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kNormShares = 64;  // in which the rows of a norm's weight gradient are summed

DeviceMatrix MatrixOf(const float* data, int64_t stride, bool transposed = false) {
  return {const_cast<float*>(data), stride, ValueType::kFloat32, transposed};
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuLlama>> GpuLlama::Make(const core::LlamaConfig& config, int64_t batch_rows,
                                                         int64_t sequence, ComputeBackend* backend) {
  std::unique_ptr<GpuLlama> llama(new GpuLlama(config, batch_rows, sequence, backend));
  RETURN_IF_ERROR(llama->arena_.Allocate(backend->device()));
  llama->attention_.SetBuffers(llama->At(llama->scores_), llama->At(llama->dscores_));
  llama->FillRopeTables();
  return llama;
}

GpuLlama::GpuLlama(const core::LlamaConfig& config, int64_t batch_rows, int64_t sequence, ComputeBackend* backend)
    : config_(config), shape_(config, batch_rows, sequence), backend_(backend), attention_(shape_.attention, backend) {
  int64_t first = 0;
  for (const core::TensorSpec& spec : core::LlamaManifest(config)) {
    firsts_.push_back(first);
    first += spec.NumValues();
  }
  Plan();
  copied_ = backend->device().MakeEvent();
  losses_here_ = backend->device().MakeEvent();
}

void GpuLlama::Plan() {
  const int64_t rows = shape_.rows(), hidden = shape_.hidden, width = shape_.intermediate;
  const auto values = [&](const char* name, int64_t count) { return arena_.Add(name, count * kFloatBytes); };
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    constexpr char kName[] = "activations";
    blocks_.push_back({.input = values(kName, rows * hidden),
                       .normed_input = values(kName, rows * hidden),
                       .input_scale = values(kName, rows),
                       .qkv = values(kName, rows * qkv_size()),
                       .attended = values(kName, rows * hidden),
                       .middle = values(kName, rows * hidden),
                       .normed_middle = values(kName, rows * hidden),
                       .middle_scale = values(kName, rows),
                       .gate_up = values(kName, rows * 2 * width),
                       .activated = values(kName, rows * width)});
  }
  output_ = values("activations", rows * hidden);
  normed_output_ = values("activations", rows * hidden);
  output_scale_ = values("activations", rows);
  logits_ = values("logits", rows * config_.vocab_size);
  losses_ = values("logits", rows);
  for (Arena::Place* place : {&tokens_, &targets_, &order_, &occurring_}) *place = values("batch", rows);
  begins_ = values("batch", rows + 1);
  const int64_t table = shape_.attention.sequence * shape_.attention.head_size / 2;
  for (Arena::Place* place : {&cosines_, &sines_}) *place = values("tables", table);
  constexpr char kGradients[] = "gradients of activations";
  for (Arena::Place* place : {&dstream_, &dnormed_, &dattended_}) *place = values(kGradients, rows * hidden);
  dqkv_ = values(kGradients, rows * qkv_size());
  dgate_up_ = values(kGradients, rows * 2 * width);
  dactivated_ = values(kGradients, rows * width);
  partials_ = values(kGradients, kNormShares * hidden);
  for (Arena::Place* place : {&scores_, &dscores_}) {
    *place = arena_.Add("attention", GpuAttention::ScoreBytes(shape_.attention));
  }
}

void GpuLlama::FillRopeTables() {
  const std::vector<double> frequencies =
      RopeFrequencies(shape_.attention.head_size, config_.rope_theta, config_.rope_scaling);
  for (int64_t position = 0; position < shape_.attention.sequence; ++position) {
    for (const double frequency : frequencies) {
      tables_[0].push_back(static_cast<float>(std::cos(static_cast<double>(position) * frequency)));
      tables_[1].push_back(static_cast<float>(std::sin(static_cast<double>(position) * frequency)));
    }
  }
  offload::Device& device = backend_->device();
  device.CopyToDevice(Queue::kCompute, At(cosines_), tables_[0].data(), tables_[0].size() * kFloatBytes);
  device.CopyToDevice(Queue::kCompute, At(sines_), tables_[1].data(), tables_[1].size() * kFloatBytes);
}

// ---- The batch ----

void GpuLlama::Begin(const Batch& batch) {
  CHECK(std::ssize(batch.tokens) == shape_.rows() && batch.targets.size() == batch.tokens.size());
  offload::Device& device = backend_->device();
  device.AwaitOnHost(copied_);  // the last batch is not needed here any more
  auto& [tokens, targets, order, begins, occurring] = staged_;
  tokens = batch.tokens;
  targets = batch.targets;
  order.resize(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t row) { return tokens[row]; });
  begins.clear();
  occurring.clear();
  for (int32_t i = 0; i < std::ssize(order); ++i) {
    if (i > 0 && tokens[order[i]] == tokens[order[i - 1]]) continue;
    begins.push_back(i);
    occurring.push_back(tokens[order[i]]);
  }
  begins.push_back(static_cast<int32_t>(order.size()));
  const Arena::Place places[] = {tokens_, targets_, order_, begins_, occurring_};
  for (size_t i = 0; i < std::size(places); ++i) {
    device.CopyToDevice(Queue::kCompute, arena_.At<int32_t>(places[i]), staged_[i].data(),
                        staged_[i].size() * sizeof(int32_t));
  }
  device.Record(copied_, Queue::kCompute);
}

// ---- Layers ----

void GpuLlama::Linear(int64_t in, int64_t out, const float* x, const float* w, float* y, float beta) {
  backend_->Gemm(Queue::kCompute, {.m = shape_.rows(),
                                   .n = out,
                                   .k = in,
                                   .a = MatrixOf(x, in),
                                   .b = MatrixOf(w, in, true),
                                   .c = MatrixOf(y, out),
                                   .beta = beta});
}

void GpuLlama::LinearBackwardInput(int64_t in, int64_t out, const float* dy, const float* w, float* dx) {
  backend_->Gemm(
      Queue::kCompute,
      {.m = shape_.rows(), .n = in, .k = out, .a = MatrixOf(dy, out), .b = MatrixOf(w, in), .c = MatrixOf(dx, in)});
}

void GpuLlama::LinearBackwardWeight(int64_t in, int64_t out, const float* dy, const float* x, float* dw) {
  backend_->Gemm(Queue::kCompute, {.m = out,
                                   .n = in,
                                   .k = shape_.rows(),
                                   .a = MatrixOf(dy, out, true),
                                   .b = MatrixOf(x, in),
                                   .c = MatrixOf(dw, in),
                                   .beta = 1});
}

void GpuLlama::Norm(const float* x, const float* w, float* y, float* scale) {
  Launch(RmsNormKernel<float>{.x = x,
                              .w = w,
                              .y = y,
                              .scale = scale,
                              .rows = shape_.rows(),
                              .size = shape_.hidden,
                              .epsilon = static_cast<float>(shape_.norm_epsilon)});
}

void GpuLlama::NormBackward(const float* dy, const float* x, const float* w, const float* scale, float* dx, float* dw) {
  const int64_t rows = shape_.rows(), size = shape_.hidden;
  Launch(RmsNormBackwardKernel<float>{.dy = dy, .x = x, .w = w, .scale = scale, .dx = dx, .rows = rows, .size = size});
  Launch(RmsNormWeightKernel<float>{
      .dy = dy, .x = x, .scale = scale, .partials = At(partials_), .rows = rows, .size = size, .shares = kNormShares});
  Launch(AddPartialsKernel{.partials = At(partials_), .dw = dw, .size = size, .shares = kNormShares});
}

void GpuLlama::Rotate(float* qkv, float sign) {
  const AttentionShape& attention = shape_.attention;
  Launch(RopeKernel<float>{.x = qkv,
                           .cosines = At(cosines_),
                           .sines = At(sines_),
                           .rows = shape_.rows(),
                           .stride = qkv_size(),
                           .heads = attention.heads + attention.kv_heads,
                           .half = attention.head_size / 2,
                           .sequence = attention.sequence,
                           .sign = sign});
}

// ---- Blocks ----

void GpuLlama::BlockForward(int64_t layer, const float* parameters, float* output) {
  const Block& block = blocks_[layer];
  const auto w = [&](BlockTensor tensor) { return Weight(parameters, TensorOf(layer, tensor)); };
  const int64_t rows = shape_.rows(), hidden = shape_.hidden, width = shape_.intermediate;
  const auto copy = [&](const float* from, float* to) {
    Launch(CopyKernel{.from = from, .to = to, .count = rows * hidden});
  };

  Norm(At(block.input), w(kInputNorm), At(block.normed_input), At(block.input_scale));
  Linear(hidden, qkv_size(), At(block.normed_input), w(kQ), At(block.qkv), 0);
  Rotate(At(block.qkv), 1);
  attention_.Forward(At(block.qkv), At(block.attended));
  copy(At(block.input), At(block.middle));
  Linear(hidden, hidden, At(block.attended), w(kO), At(block.middle), 1);

  Norm(At(block.middle), w(kMiddleNorm), At(block.normed_middle), At(block.middle_scale));
  Linear(hidden, 2 * width, At(block.normed_middle), w(kGate), At(block.gate_up), 0);
  Launch(SwiGluKernel<float>{.gate_up = At(block.gate_up), .y = At(block.activated), .rows = rows, .size = width});
  copy(At(block.middle), output);
  Linear(width, hidden, At(block.activated), w(kDown), output, 1);
}

void GpuLlama::BlockBackward(int64_t layer, const float* parameters, float* gradients, float* dstream) {
  const Block& block = blocks_[layer];
  const auto w = [&](BlockTensor tensor) { return Weight(parameters, TensorOf(layer, tensor)); };
  const auto dw = [&](BlockTensor tensor) { return gradients + firsts_[TensorOf(layer, tensor)]; };
  const int64_t rows = shape_.rows(), hidden = shape_.hidden, width = shape_.intermediate;

  LinearBackwardInput(width, hidden, dstream, w(kDown), At(dactivated_));
  LinearBackwardWeight(width, hidden, dstream, At(block.activated), dw(kDown));
  Launch(SwiGluBackwardKernel<float>{
      .dy = At(dactivated_), .gate_up = At(block.gate_up), .dgate_up = At(dgate_up_), .rows = rows, .size = width});
  LinearBackwardInput(hidden, 2 * width, At(dgate_up_), w(kGate), At(dnormed_));
  LinearBackwardWeight(hidden, 2 * width, At(dgate_up_), At(block.normed_middle), dw(kGate));
  NormBackward(At(dnormed_), At(block.middle), w(kMiddleNorm), At(block.middle_scale), dstream, dw(kMiddleNorm));

  LinearBackwardInput(hidden, hidden, dstream, w(kO), At(dattended_));
  LinearBackwardWeight(hidden, hidden, dstream, At(block.attended), dw(kO));
  attention_.Backward(At(block.qkv), At(dattended_), At(dqkv_));
  Rotate(At(dqkv_), -1);
  LinearBackwardInput(hidden, qkv_size(), At(dqkv_), w(kQ), At(dnormed_));
  LinearBackwardWeight(hidden, qkv_size(), At(dqkv_), At(block.normed_input), dw(kQ));
  NormBackward(At(dnormed_), At(block.input), w(kInputNorm), At(block.input_scale), dstream, dw(kInputNorm));
}

// ---- The model ----

void GpuLlama::Forward(const float* parameters) {
  const int64_t rows = shape_.rows(), hidden = shape_.hidden, layers = config_.num_hidden_layers;
  Launch(EmbeddingKernel<float>{.tokens = arena_.At<int32_t>(tokens_),
                                .w = Weight(parameters, 0),
                                .y = At(layers > 0 ? blocks_[0].input : output_),
                                .rows = rows,
                                .size = hidden});
  for (int64_t layer = 0; layer < layers; ++layer) {
    BlockForward(layer, parameters, At(layer + 1 < layers ? blocks_[layer + 1].input : output_));
  }
  Norm(At(output_), Weight(parameters, final_norm()), At(normed_output_), At(output_scale_));
  Linear(hidden, config_.vocab_size, At(normed_output_), Weight(parameters, head()), At(logits_), 0);
}

void GpuLlama::Backward(const float* parameters, float* gradients, float scale) {
  const int64_t rows = shape_.rows(), hidden = shape_.hidden, vocab = config_.vocab_size;
  Launch(ClassifierKernel<float>{.logits = At(logits_),
                                 .targets = arena_.At<int32_t>(targets_),
                                 .losses = At(losses_),
                                 .rows = rows,
                                 .vocab = vocab,
                                 .factor = scale / static_cast<float>(rows)});
  offload::Device& device = backend_->device();
  loss_rows_.resize(rows);
  device.CopyToHost(Queue::kCompute, loss_rows_.data(), At(losses_), rows * kFloatBytes);
  device.Record(losses_here_, Queue::kCompute);

  float* const dstream = At(dstream_);
  LinearBackwardInput(hidden, vocab, At(logits_), Weight(parameters, head()), At(dnormed_));
  LinearBackwardWeight(hidden, vocab, At(logits_), At(normed_output_), gradients + firsts_[head()]);
  Launch(FillKernel{.values = dstream, .count = rows * hidden, .value = 0});
  NormBackward(At(dnormed_), At(output_), Weight(parameters, final_norm()), At(output_scale_), dstream,
               gradients + firsts_[final_norm()]);
  for (int64_t layer = config_.num_hidden_layers - 1; layer >= 0; --layer) {
    BlockBackward(layer, parameters, gradients, dstream);
  }
  Launch(EmbeddingBackwardKernel<float>{.order = arena_.At<int32_t>(order_),
                                        .begins = arena_.At<int32_t>(begins_),
                                        .tokens = arena_.At<int32_t>(occurring_),
                                        .dy = dstream,
                                        .dw = gradients,
                                        .occurring = std::ssize(staged_[4]),
                                        .size = hidden});
}

absl::StatusOr<double> GpuLlama::Loss() {
  backend_->device().AwaitOnHost(losses_here_);
  RETURN_IF_ERROR(backend_->device().status());
  double sum = 0;
  for (const float loss : loss_rows_) sum += loss;
  return sum / static_cast<double>(loss_rows_.size());
}

}  // namespace causeway::worker
