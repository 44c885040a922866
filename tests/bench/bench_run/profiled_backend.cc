#include "tests/bench/bench_run/profiled_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::bench {
namespace {

using offload::Queue;

// As in the source, "RmsNormKernel<float>", from what the compiler says of a function.
template <typename T>
std::string NameOf(const T&) {
  const std::string text = __PRETTY_FUNCTION__;
  const size_t begin = text.find("T = ") + 4;
  std::string name = text.substr(begin, text.find_first_of(";]", begin) - begin);
  for (const char* space : {"causeway::", "worker::"}) {
    for (size_t at; (at = name.find(space)) != std::string::npos;) name.erase(at, std::string(space).size());
  }
  return name;
}

class ProfiledAttention final : public worker::DeviceAttention {
 public:
  ProfiledAttention(std::unique_ptr<worker::DeviceAttention> attention, ProfiledBackend* backend)
      : attention_(std::move(attention)), backend_(backend) {}

  worker::AttentionKind kind() const override { return attention_->kind(); }
  int64_t statistics() const override { return attention_->statistics(); }
  int64_t buffer_bytes() const override { return attention_->buffer_bytes(); }
  void SetBuffer(void* memory) override { attention_->SetBuffer(memory); }
  void Forward(const void* qkv, void* out, float* statistics) override {
    backend_->Timed(Queue::kCompute, "attention", [&] { attention_->Forward(qkv, out, statistics); });
  }
  void Backward(const void* qkv, const void* out, const float* statistics, const void* dout, void* dqkv) override {
    backend_->Timed(Queue::kCompute, "attention backward",
                    [&] { attention_->Backward(qkv, out, statistics, dout, dqkv); });
  }

 private:
  const std::unique_ptr<worker::DeviceAttention> attention_;
  ProfiledBackend* const backend_;
};

}  // namespace

void ProfiledBackend::Gemm(Queue queue, const worker::GemmJob& job) {
  const std::string name =
      absl::StrCat("product ", job.m, " × ", job.k, job.a.transposed ? "ᵀ" : "", " by ", job.k, " × ", job.n,
                   job.b.transposed ? "ᵀ" : "", job.c.type == worker::ValueType::kFloat32 ? " in float32" : "");
  Timed(queue, name, [&] { backend_->Gemm(queue, job); });
}

void ProfiledBackend::Launch(Queue queue, const worker::Kernel& kernel) {
  const std::string name = std::visit([](const auto& arguments) { return NameOf(arguments); }, kernel);
  Timed(queue, name, [&] { backend_->Launch(queue, kernel); });
}

absl::StatusOr<std::unique_ptr<worker::DeviceAttention>> ProfiledBackend::MakeAttention(
    const worker::AttentionShape& shape, worker::ValueType type) {
  ASSIGN_OR_RETURN(std::unique_ptr<worker::DeviceAttention> attention, backend_->MakeAttention(shape, type));
  return std::make_unique<ProfiledAttention>(std::move(attention), this);
}

std::vector<ProfiledBackend::Row> ProfiledBackend::Rows() {
  std::map<std::string, Row> by_name;
  for (const Call& call : calls_) {
    device().AwaitOnHost(call.begin);
    device().AwaitOnHost(call.end);
    Row& row = by_name[call.name];
    row.name = call.name;
    ++row.calls;
    row.seconds += device().SecondsBetween(call.begin, call.end);
  }
  calls_.clear();
  profiling_ = false;
  std::vector<Row> rows;
  for (auto& [name, row] : by_name) rows.push_back(std::move(row));
  std::ranges::stable_sort(rows, std::greater<>(), &Row::seconds);
  return rows;
}

}  // namespace causeway::bench
