// The losses of the rows of some batches, on their way to the host. One owner thread.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/check.h"
#include "offload/device.h"
#include "offload/pinned_pool.h"

namespace causeway::worker {

class LossRows {
 public:
  explicit LossRows(offload::Device* device) : device_(device), pool_(device), here_(device->MakeEvent()) {}

  // The same number of rows each time.
  void Copy(const float* losses, int64_t rows) {
    const size_t bytes = static_cast<size_t>(rows) * sizeof(float);
    if (batches_ == rows_.size()) {
      absl::StatusOr<offload::PinnedPool::Array> pinned = pool_.Take(bytes);
      if (!pinned.ok()) return not_pinned_.push_back(pinned.status());
      rows_.push_back(*std::move(pinned));
    }
    device_->CopyToHost(offload::Queue::kCompute, rows_[batches_++].data(), losses, bytes);
    device_->Record(here_, offload::Queue::kCompute);
  }

  // The mean over all rows since the last call, without the last `skipped`; waits for them.
  absl::StatusOr<double> Mean(int64_t skipped) {
    device_->AwaitOnHost(here_);
    if (!not_pinned_.empty()) return not_pinned_.front();
    RETURN_IF_ERROR(device_->status());
    double sum = 0, count = 0;
    for (size_t i = 0; i < batches_; ++i) {
      std::span<const float> rows = rows_[i].Values<float>();
      if (i + 1 == batches_) rows = rows.first(rows.size() - static_cast<size_t>(skipped));
      sum = std::accumulate(rows.begin(), rows.end(), sum);
      count += static_cast<double>(rows.size());
    }
    batches_ = 0;
    return sum / count;
  }

 private:
  offload::Device* const device_;
  offload::PinnedPool pool_;
  std::vector<offload::PinnedPool::Array> rows_;  // of each batch
  size_t batches_ = 0;
  std::vector<absl::Status> not_pinned_;
  offload::Device::Event here_;
};

}  // namespace causeway::worker
