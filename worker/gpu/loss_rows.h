// The losses of the rows of some batches, on their way to the host. One owner thread.
#pragma once

#include <cstdint>
#include <deque>
#include <numeric>
#include <vector>

#include "absl/status/statusor.h"
#include "core/check.h"
#include "offload/device.h"

namespace causeway::worker {

class LossRows {
 public:
  explicit LossRows(offload::Device* device) : device_(device), here_(device->MakeEvent()) {}

  void Copy(const float* losses, int64_t rows) {
    if (++batches_ > rows_.size()) rows_.emplace_back(rows);
    device_->CopyToHost(offload::Queue::kCompute, rows_[batches_ - 1].data(), losses,
                        static_cast<size_t>(rows) * sizeof(float));
    device_->Record(here_, offload::Queue::kCompute);
  }

  // The mean over all rows since the last call; waits for them.
  absl::StatusOr<double> Mean() {
    device_->AwaitOnHost(here_);
    RETURN_IF_ERROR(device_->status());
    double sum = 0, count = 0;
    for (size_t i = 0; i < batches_; ++i) {
      sum = std::accumulate(rows_[i].begin(), rows_[i].end(), sum);
      count += static_cast<double>(rows_[i].size());
    }
    batches_ = 0;
    return sum / count;
  }

 private:
  offload::Device* const device_;
  std::deque<std::vector<float>> rows_;  // of each batch; addresses stay
  size_t batches_ = 0;
  offload::Device::Event here_;
};

}  // namespace causeway::worker
