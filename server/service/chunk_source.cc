#include "server/service/chunk_source.h"

#include <utility>

#include "core/check.h"

namespace causeway::server {

Update::Update(const SavedUpdate& saved)
    : header_(transport::DownloadHeader{.version = saved.base + 1,
                                        .outer = saved.outer,
                                        .merged = saved.merged,
                                        .sites = saved.sites,
                                        .num_chunks = static_cast<int>(saved.chunks.size()),
                                        .already_held = false}),
      chunks_(saved.chunks),
      digest_(saved.digest) {}

void Update::Begin(transport::DownloadHeader header) {
  {
    core::MutexLock lock(mutex_);
    CHECK(!header_);
    header_ = std::move(header);
  }
  Wake();
}

void Update::Append(std::string chunk) {
  {
    core::MutexLock lock(mutex_);
    chunks_.push_back(std::make_shared<const std::string>(std::move(chunk)));
  }
  Wake();
}

void Update::End(uint64_t digest) {
  {
    core::MutexLock lock(mutex_);
    CHECK(header_ && header_->num_chunks == static_cast<int>(chunks_.size()));
    digest_ = digest;
  }
  Wake();
}

void Update::Wake() {
  std::vector<std::function<void()>> waiting;
  {
    core::MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  for (const auto& wake : waiting) wake();
}

std::optional<SavedUpdate> Update::Save() const {
  core::MutexLock lock(mutex_);
  if (!digest_) return std::nullopt;
  return SavedUpdate{.base = header_->version - 1,
                     .outer = header_->outer,
                     .merged = header_->merged,
                     .sites = header_->sites,
                     .digest = *digest_,
                     .chunks = chunks_};
}

std::optional<transport::DownloadHeader> Update::Header(std::function<void()> wake) {
  core::MutexLock lock(mutex_);
  if (!header_) waiting_.push_back(std::move(wake));
  return header_;
}

ChunkSource::Item Update::Get(size_t index, std::function<void()> wake) {
  core::MutexLock lock(mutex_);
  if (index < chunks_.size()) return {.chunk = chunks_[index]};
  if (digest_) return {.end = digest_};
  waiting_.push_back(std::move(wake));
  return {};
}

Anchor::Anchor(std::shared_ptr<const core::FragmentState> state, const core::Fragment& fragment, bool already_held)
    : state_(std::move(state)), plan_(codecs::PlanChunks(fragment, codecs::Unencoded())), already_held_(already_held) {}

std::optional<transport::DownloadHeader> Anchor::Header(std::function<void()>) {
  return transport::DownloadHeader{.version = state_->version,
                                   .outer = {},
                                   .merged = {},
                                   .sites = {},
                                   .num_chunks = already_held_ ? 0 : static_cast<int>(2 * plan_.size()),
                                   .already_held = already_held_};
}

ChunkSource::Item Anchor::Get(size_t index, std::function<void()>) {
  if (already_held_ || index >= 2 * plan_.size()) return {.end = state_->Digest()};
  const core::AlignedFloats& values = index < plan_.size() ? state_->anchor : state_->momentum;
  const codecs::ChunkSpan& span = plan_[index % plan_.size()];
  const std::span<const float> chunk_values(&values[span.first_value()], span.values);
  absl::StatusOr<std::string> chunk = codecs::EncodeChunk(span, chunk_values, {});
  if (!chunk.ok()) return {.error = chunk.status()};  // a run that has diverged beyond what a codec can carry
  return {.chunk = std::make_shared<const std::string>(*std::move(chunk))};
}

}  // namespace causeway::server
