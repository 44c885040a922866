#include "worker/parallel/partitioned_llama.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/clock.h"
#include "core/model_manifest.h"

namespace causeway::worker {
namespace {

// The number of products for which a blocked matrix product uses a value fetched from L2 into registers, and from L3
// into L2.
constexpr double kUsesOfL2 = 16, kUsesOfL3 = 256;

StageRange RangeOf(const core::LlamaConfig& config, int layer) {
  return {.first = layer,
          .last = layer,
          .embedding = layer == 0,
          .head = layer + 1 == static_cast<int>(config.num_hidden_layers)};
}

}  // namespace

std::vector<std::vector<int>> GroupsOf(const core::LlamaConfig& config) {
  std::vector<std::vector<int>> groups;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    groups.push_back(LlamaStage(config, 1, 1, RangeOf(config, layer)).tensors());
    if (layer > 0) std::erase(groups.back(), 0);  // a tied head's, which group 0 has
  }
  return groups;
}

PartitionedLlama::PartitionedLlama(const core::LlamaConfig& config, const Sizes& sizes, const PartitionLayout& layout,
                                   PartitionedValues& values)
    : layout_(layout),
      values_(values),
      micro_batches_(sizes.micro_batches),
      tensors_(core::LlamaManifest(config).size()),
      weight_views_(tensors_),
      sum_views_(tensors_ + 1),
      scratch_(LlamaShape(config, sizes.rows / sizes.micro_batches, sizes.sequence)) {
  for (const LayoutGroup& group : layout.groups()) room_values_ = std::max(room_values_, group.padded);
  // With a tied head, the weights of group 0 stay in memory beside the others'.
  const size_t rooms = config.tie_word_embeddings && layout.groups().size() > 1 ? 2 : 1;
  weights_.resize(rooms * static_cast<size_t>(room_values_));
  sums_.resize(static_cast<size_t>(room_values_));
  if (config.tie_word_embeddings) tied_head_.resize(static_cast<size_t>(config.vocab_size * config.hidden_size));
  sum_views_[tensors_] = tied_head_;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    stages_.emplace_back(config, sizes.rows / micro_batches_, sizes.sequence, RangeOf(config, layer));
    blocks_.emplace_back(stages_.back().shape());
  }
  for (size_t i = 0; i < stages_.size(); ++i) {
    kept_.push_back({.blocks = {&blocks_[i]}});
    stages_[i].Prepare(kept_.back());
  }
  for (std::vector<float>* values_of : {&below_, &stream_, &next_}) {
    values_of->resize(static_cast<size_t>(stages_[0].message_values()));
  }
}

std::span<float> PartitionedLlama::Room(std::vector<float>& rooms, size_t group) {
  const bool second = group == 0 && rooms.size() > static_cast<size_t>(room_values_);
  return std::span(rooms).subspan(second ? static_cast<size_t>(room_values_) : 0,
                                  static_cast<size_t>(layout_.groups()[group].padded));
}

absl::Status PartitionedLlama::Gather(size_t group) {
  const LayoutGroup& of = layout_.groups()[group];
  const std::span<float> room = Room(weights_, group);
  for (size_t i = 0; i < of.tensors.size(); ++i) {
    const int64_t end = i + 1 < of.tensors.size() ? of.firsts[i + 1] : of.values;
    weight_views_[static_cast<size_t>(of.tensors[i])] =
        room.subspan(static_cast<size_t>(of.firsts[i]), static_cast<size_t>(end - of.firsts[i]));
  }
  return values_.Gather(group, room);
}

void PartitionedLlama::ShowGradients(size_t group) {
  const LayoutGroup& of = layout_.groups()[group];
  const std::span<float> room = Room(sums_, group);
  std::ranges::fill(room, 0.0f);
  for (size_t i = 0; i < of.tensors.size(); ++i) {
    const int64_t end = i + 1 < of.tensors.size() ? of.firsts[i + 1] : of.values;
    sum_views_[static_cast<size_t>(of.tensors[i])] =
        room.subspan(static_cast<size_t>(of.firsts[i]), static_cast<size_t>(end - of.firsts[i]));
  }
}

// Counts matrix products: `passes` of them over the group's weights. Attention's are few in comparison.
void PartitionedLlama::Note(const char* what, size_t group, double passes, core::Clock::TimePoint begin) {
  if (trace_ == nullptr) return;
  const auto weights = static_cast<double>(layout_.groups()[group].values);
  const auto rows = static_cast<double>(stages_[group].shape().rows());
  const double products = passes * rows * weights, value = sizeof(float);
  trace_->Add(what + std::to_string(group), begin,
              {{"cpu", 2 * products},
               {"l2", value * products / kUsesOfL2},
               {"l3", value * products / kUsesOfL3},
               {"dram", value * passes * weights}});
}

absl::StatusOr<double> PartitionedLlama::Run(const Batch& batch, float scale) {
  const auto count = static_cast<double>(micro_batches_);
  double loss = 0;
  for (int64_t i = 0; i < micro_batches_; ++i) {
    const Batch micro_batch = Part(batch, i, micro_batches_);
    ASSIGN_OR_RETURN(const double part,
                     RunPart(micro_batch, scale / static_cast<float>(count), i + 1 == micro_batches_));
    loss += part / count;
  }
  return loss;
}

absl::StatusOr<double> PartitionedLlama::RunPart(const Batch& batch, float scale, bool last_part) {
  const size_t last = stages_.size() - 1;
  double loss = 0;
  for (size_t g = 0; g <= last; ++g) {
    RETURN_IF_ERROR(Gather(g));
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    loss += stages_[g].Forward(weight_views_, batch, g == 0 ? std::span<const float>() : stream_, kept_[g],
                               g == last ? std::span<float>() : next_);
    Note("forward ", g, 1, begin);
    std::swap(stream_, next_);
  }
  for (size_t g = last + 1; g-- > 0;) {
    RETURN_IF_ERROR(Gather(g));
    ShowGradients(g);
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    stages_[g].Backward(weight_views_, batch, scale, g == last ? std::span<const float>() : stream_, kept_[g], scratch_,
                        below_, sum_views_, g == 0 ? std::span<float>() : next_);
    Note("backward ", g, 2, begin);
    std::swap(stream_, next_);
    if (g == 0 && last_part) AddTiedHead(tied_head_, sum_views_[0]);
    RETURN_IF_ERROR(values_.AddGradients(g, Room(sums_, g)));
  }
  return loss;
}

}  // namespace causeway::worker
