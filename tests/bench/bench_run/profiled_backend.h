// A ComputeBackend that times what it queues: an event before and after each kernel, product and attention, of the
// steps between Begin and Rows.
//
// The events cost a little themselves, and a kernel's time has its wait for the queue's hardware in it. One owner
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/device/compute_backend.h"

namespace causeway::bench {

class ProfiledBackend final : public worker::ComputeBackend {
 public:
  struct Row {
    std::string name;
    int64_t calls = 0;
    double seconds = 0;
  };

  explicit ProfiledBackend(std::unique_ptr<worker::ComputeBackend> backend) : backend_(std::move(backend)) {}

  void Begin() { profiling_ = true; }
  // Waits for everything; the longest first.
  std::vector<Row> Rows();

  offload::Device& device() override { return backend_->device(); }
  bool timed() const override { return backend_->timed(); }
  bool Encodes(core::CodecId codec) const override { return backend_->Encodes(codec); }
  void Encode(offload::Queue queue, core::CodecId codec, const codecs::EncodeJob& job,
              unsigned long long* bad_block) override {
    backend_->Encode(queue, codec, job, bad_block);
  }
  void Gemm(offload::Queue queue, const worker::GemmJob& job) override;
  void Launch(offload::Queue queue, const worker::Kernel& kernel) override;
  absl::StatusOr<std::unique_ptr<worker::DeviceAttention>> MakeAttention(const worker::AttentionShape& shape,
                                                                         worker::ValueType type) override;

  // Times what `work` queues.
  template <typename Work>
  void Timed(offload::Queue queue, const std::string& name, const Work& work) {
    if (!profiling_) return work();
    Call call{name, device().MakeTimedEvent(), device().MakeTimedEvent()};
    device().Record(call.begin, queue);
    work();
    device().Record(call.end, queue);
    calls_.push_back(std::move(call));
  }

 private:
  struct Call {
    std::string name;
    offload::Device::Event begin = 0, end = 0;
  };

  const std::unique_ptr<worker::ComputeBackend> backend_;
  bool profiling_ = false;
  std::vector<Call> calls_;
};

}  // namespace causeway::bench
