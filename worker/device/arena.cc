#include "worker/device/arena.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"

namespace causeway::worker {

constexpr int64_t kLineBytes = 256;

Arena::~Arena() {
  if (memory_ != nullptr) device_->Free(memory_);
}

Arena::Place Arena::Add(std::string name, int64_t bytes) {
  CHECK(memory_ == nullptr);
  parts_.push_back({std::move(name), bytes_, bytes});
  bytes_ += (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  return parts_.size() - 1;
}

absl::Status Arena::Allocate(offload::Device& device) {
  const auto memory = device.Allocate(static_cast<size_t>(bytes_));
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(memory.status().message(), "; the trainer needs ", Description()));
  }
  device_ = &device;
  memory_ = static_cast<char*>(*memory);
  return absl::OkStatus();
}

std::string Arena::Description() const {
  std::map<std::string, int64_t> by_name;
  for (const Part& part : parts_) by_name[part.name] += part.bytes;
  std::string text;
  for (const auto& [name, bytes] : by_name) {
    absl::StrAppendFormat(&text, "%s%s %.1f MB", text.empty() ? "" : ", ", name, static_cast<double>(bytes) / 1e6);
  }
  return text;
}

}  // namespace causeway::worker
