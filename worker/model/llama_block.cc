#include "worker/model/llama_block.h"

#include <algorithm>

namespace causeway::worker {

LlamaShape::LlamaShape(const core::LlamaConfig& config, int64_t batch, int64_t sequence)
    : attention{.batch = batch,
                .sequence = sequence,
                .heads = config.num_attention_heads,
                .kv_heads = config.num_key_value_heads,
                .head_size = config.hidden_size / config.num_attention_heads},
      hidden(config.hidden_size),
      kv_hidden(attention.kv_heads * attention.head_size),
      intermediate(config.intermediate_size),
      norm_epsilon(config.rms_norm_eps) {}

BlockActivations::BlockActivations(const LlamaShape& shape) {
  for (auto* values : {&input, &normed_input, &q, &attended, &middle, &normed_middle}) {
    values->resize(shape.rows() * shape.hidden);
  }
  for (auto* values : {&k, &v}) values->resize(shape.rows() * shape.kv_hidden);
  for (auto* values : {&gate, &up, &activated}) values->resize(shape.rows() * shape.intermediate);
  for (auto* values : {&input_scale, &middle_scale}) values->resize(shape.rows());
  probabilities.resize(shape.attention.probabilities());
}

BlockGradients::BlockGradients(const LlamaShape& shape) {
  for (auto* values : {&normed_input, &q, &attended, &middle, &normed_middle}) {
    values->resize(shape.rows() * shape.hidden);
  }
  for (auto* values : {&k, &v}) values->resize(shape.rows() * shape.kv_hidden);
  for (auto* values : {&gate, &up, &activated}) values->resize(shape.rows() * shape.intermediate);
  scratch.resize(shape.attention.sequence * shape.attention.sequence);
}

void BlockForward(const LlamaShape& shape, const Rope& rope, BlockWeights weights, BlockActivations& a, float* output) {
  const int64_t rows = shape.rows();
  const int64_t hidden = shape.hidden;
  const auto w = [&weights](BlockTensor tensor) { return weights[tensor].data(); };

  RmsNorm(rows, hidden, shape.norm_epsilon, a.input.data(), w(kInputNorm), a.normed_input.data(), a.input_scale.data());
  Linear(rows, hidden, hidden, a.normed_input.data(), w(kQ), a.q.data());
  Linear(rows, hidden, shape.kv_hidden, a.normed_input.data(), w(kK), a.k.data());
  Linear(rows, hidden, shape.kv_hidden, a.normed_input.data(), w(kV), a.v.data());
  rope.Rotate(rows, shape.attention.heads, a.q.data());
  rope.Rotate(rows, shape.attention.kv_heads, a.k.data());
  Attention(shape.attention, a.q.data(), a.k.data(), a.v.data(), a.probabilities.data(), a.attended.data());
  std::ranges::copy(a.input, a.middle.begin());
  LinearAdd(rows, hidden, hidden, a.attended.data(), w(kO), a.middle.data());

  RmsNorm(rows, hidden, shape.norm_epsilon, a.middle.data(), w(kMiddleNorm), a.normed_middle.data(),
          a.middle_scale.data());
  Linear(rows, hidden, shape.intermediate, a.normed_middle.data(), w(kGate), a.gate.data());
  Linear(rows, hidden, shape.intermediate, a.normed_middle.data(), w(kUp), a.up.data());
  SwiGlu(rows * shape.intermediate, a.gate.data(), a.up.data(), a.activated.data());
  std::ranges::copy(a.middle, output);
  LinearAdd(rows, shape.intermediate, hidden, a.activated.data(), w(kDown), output);
}

void BlockBackwardInput(const LlamaShape& shape, const Rope& rope, BlockWeights weights, const BlockActivations& a,
                        const float* doutput, BlockGradients& d, float* dinput) {
  const int64_t rows = shape.rows();
  const int64_t hidden = shape.hidden;
  const auto w = [&weights](BlockTensor tensor) { return weights[tensor].data(); };

  LinearBackwardInput(rows, shape.intermediate, hidden, doutput, w(kDown), d.activated.data());
  SwiGluBackwardInput(rows * shape.intermediate, d.activated.data(), a.gate.data(), a.up.data(), d.gate.data(),
                      d.up.data());
  LinearBackwardInput(rows, hidden, shape.intermediate, d.gate.data(), w(kGate), d.normed_middle.data());
  LinearBackwardInputAdd(rows, hidden, shape.intermediate, d.up.data(), w(kUp), d.normed_middle.data());
  std::copy_n(doutput, rows * hidden, d.middle.data());
  RmsNormBackwardInputAdd(rows, hidden, d.normed_middle.data(), a.middle.data(), w(kMiddleNorm), a.middle_scale.data(),
                          d.middle.data());

  LinearBackwardInput(rows, hidden, hidden, d.middle.data(), w(kO), d.attended.data());
  AttentionBackwardInput(shape.attention, d.attended.data(), a.q.data(), a.k.data(), a.v.data(), a.probabilities.data(),
                         d.scratch.data(), d.q.data(), d.k.data(), d.v.data());
  rope.RotateBackwardInput(rows, shape.attention.heads, d.q.data());
  rope.RotateBackwardInput(rows, shape.attention.kv_heads, d.k.data());
  LinearBackwardInput(rows, hidden, hidden, d.q.data(), w(kQ), d.normed_input.data());
  LinearBackwardInputAdd(rows, hidden, shape.kv_hidden, d.k.data(), w(kK), d.normed_input.data());
  LinearBackwardInputAdd(rows, hidden, shape.kv_hidden, d.v.data(), w(kV), d.normed_input.data());
  std::ranges::copy(d.middle, dinput);
  RmsNormBackwardInputAdd(rows, hidden, d.normed_input.data(), a.input.data(), w(kInputNorm), a.input_scale.data(),
                          dinput);
}

void BlockBackwardWeight(const LlamaShape& shape, const BlockActivations& a, const float* doutput,
                         const BlockGradients& d, BlockWeightGradients dweights) {
  const int64_t rows = shape.rows();
  const int64_t hidden = shape.hidden;
  const auto dw = [&dweights](BlockTensor tensor) { return dweights[tensor].data(); };

  LinearBackwardWeight(rows, hidden, hidden, d.q.data(), a.normed_input.data(), dw(kQ));
  LinearBackwardWeight(rows, hidden, shape.kv_hidden, d.k.data(), a.normed_input.data(), dw(kK));
  LinearBackwardWeight(rows, hidden, shape.kv_hidden, d.v.data(), a.normed_input.data(), dw(kV));
  LinearBackwardWeight(rows, hidden, hidden, d.middle.data(), a.attended.data(), dw(kO));
  LinearBackwardWeight(rows, hidden, shape.intermediate, d.gate.data(), a.normed_middle.data(), dw(kGate));
  LinearBackwardWeight(rows, hidden, shape.intermediate, d.up.data(), a.normed_middle.data(), dw(kUp));
  LinearBackwardWeight(rows, shape.intermediate, hidden, doutput, a.activated.data(), dw(kDown));
  RmsNormBackwardWeight(rows, hidden, d.normed_input.data(), a.input.data(), a.input_scale.data(), dw(kInputNorm));
  RmsNormBackwardWeight(rows, hidden, d.normed_middle.data(), a.middle.data(), a.middle_scale.data(), dw(kMiddleNorm));
}

}  // namespace causeway::worker
