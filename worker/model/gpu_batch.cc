#include "worker/model/gpu_batch.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "core/check.h"
#include "worker/device/kernels/embedding_kernels.h"

namespace causeway::worker {
namespace {

constexpr int64_t kLine = 64;  // values

int64_t LinesOf(int64_t values) { return (values + kLine - 1) / kLine * kLine; }

}  // namespace

void EmbeddingShares::Assign(std::span<const int32_t> of_rows) {
  constexpr auto kMost = static_cast<int32_t>(kEmbeddingShareRows);
  order.resize(of_rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t row) { return of_rows[row]; });
  for (std::vector<int32_t>* part : {&tokens, &begins, &ends, &split}) part->clear();
  const auto rows = static_cast<int32_t>(order.size());
  for (const bool several : {true, false}) {
    for (int32_t begin = 0, end = 0; begin < rows; begin = end) {
      const int32_t token = of_rows[order[begin]];
      while (end < rows && of_rows[order[end]] == token) ++end;
      if ((end - begin > kMost) != several) continue;
      if (several) split.push_back(static_cast<int32_t>(count()));
      for (int32_t first = begin; first < end; first += kMost) {
        tokens.push_back(token);
        begins.push_back(first);
        ends.push_back(std::min(first + kMost, end));
      }
    }
    if (several) split.push_back(static_cast<int32_t>(count()));
  }
}

GpuBatch::GpuBatch(int64_t rows, Arena* arena, ComputeBackend* backend)
    : arena_(arena),
      device_(&backend->device()),
      most_rows_(rows),
      stride_(LinesOf(rows + 1)),
      place_(arena->Add("batch", kParts * stride_ * static_cast<int64_t>(sizeof(int32_t)))),
      pool_(device_) {}

absl::Status GpuBatch::Copy(const PreparedBatch& prepared) {
  const auto& [batch, shares] = prepared;
  CHECK(std::ssize(batch.tokens) <= most_rows_ && batch.targets.size() == batch.tokens.size());
  Staged& staged = staged_[copies_++ % 2];
  if (staged.memory.data() == nullptr) {
    ASSIGN_OR_RETURN(staged.memory, pool_.Take(static_cast<size_t>(kParts * stride_) * sizeof(int32_t)));
    staged.copied = device_->MakeEvent();
  }
  device_->AwaitOnHost(staged.copied);
  const std::vector<int32_t>* const parts[kParts] = {&batch.tokens,  &batch.targets, &shares.order, &shares.tokens,
                                                     &shares.begins, &shares.ends,   &shares.split};
  const std::span<int32_t> values = staged.memory.Values<int32_t>();
  for (int part = 0; part < kParts; ++part) std::ranges::copy(*parts[part], values.begin() + part * stride_);
  device_->CopyToDevice(offload::Queue::kCompute, At(kTokens), values.data(), values.size_bytes());
  device_->Record(staged.copied, offload::Queue::kCompute);
  counts_ = {shares.count(), shares.partial(), shares.split_tokens()};
  return device_->status();
}

}  // namespace causeway::worker
