#include "worker/gpu/gpu_batch.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace causeway::worker {

GpuBatch::GpuBatch(int64_t rows, Arena* arena, ComputeBackend* backend) : arena_(arena), device_(&backend->device()) {
  for (Arena::Place& place : places_) {
    place = arena->Add("batch", (rows + 1) * static_cast<int64_t>(sizeof(int32_t)));
    staged_[&place - places_].reserve(rows + 1);
  }
  copied_ = device_->MakeEvent();
}

void GpuBatch::Copy(const Batch& batch) {
  CHECK(batch.tokens.size() < staged_[kTokens].capacity() && batch.targets.size() == batch.tokens.size());
  device_->AwaitOnHost(copied_);
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
  for (int part = 0; part < kParts; ++part) {
    device_->CopyToDevice(offload::Queue::kCompute, At(static_cast<Part>(part)), staged_[part].data(),
                          staged_[part].size() * sizeof(int32_t));
  }
  device_->Record(copied_, offload::Queue::kCompute);
}

}  // namespace causeway::worker
