#include "worker/gpu/gpu_batch.h"

#include "core/check.h"

namespace causeway::worker {

GpuBatch::GpuBatch(int64_t rows, Arena* arena, ComputeBackend* backend)
    : arena_(arena), device_(&backend->device()), most_rows_(static_cast<size_t>(rows)) {
  for (Arena::Place& place : places_) {
    place = arena->Add("batch", (rows + 1) * static_cast<int64_t>(sizeof(int32_t)));
  }
  copied_ = device_->MakeEvent();
}

void GpuBatch::Copy(const Batch& batch) {
  CHECK(batch.tokens.size() <= most_rows_ && batch.targets.size() == batch.tokens.size());
  device_->AwaitOnHost(copied_);
  tokens_ = batch.tokens;
  targets_ = batch.targets;
  shares_.Assign(tokens_);
  const std::vector<int32_t>* const staged[kParts] = {&tokens_,        &targets_,     &shares_.order, &shares_.tokens,
                                                      &shares_.begins, &shares_.ends, &shares_.split};
  for (int part = 0; part < kParts; ++part) {
    device_->CopyToDevice(offload::Queue::kCompute, At(static_cast<Part>(part)), staged[part]->data(),
                          staged[part]->size() * sizeof(int32_t));
  }
  device_->Record(copied_, offload::Queue::kCompute);
}

}  // namespace causeway::worker
