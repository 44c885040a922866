#include "server/run/chunk_source.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "codecs/compression.h"
#include "core/check.h"

namespace causeway::server {
namespace {

transport::DownloadHeader HeaderOf(const RoundRecord& round, int num_chunks) {
  transport::DownloadHeader header{
      .version = round.base + 1, .outer = round.outer, .sites = round.sites, .num_chunks = num_chunks};
  header.run_tokens = round.run_tokens;
  if (round.codecs) {
    header.codec = static_cast<uint32_t>(round.codecs->down);
    header.up_codec = static_cast<uint32_t>(round.codecs->next_up);
  }
  for (const RoundRecord::Contributor& contributor : round.contributors) {
    header.merged.push_back(contributor.site);
    header.merged_bases.push_back(contributor.base);
    header.merged_weights.push_back(contributor.weight * contributor.factor);
  }
  return header;
}

}  // namespace

Update::Update(const Journal* journal, const StoredRound& stored)
    : journal_(journal),
      header_(HeaderOf(stored.record, static_cast<int>(stored.update.chunk_bytes.size()))),
      extent_(std::make_shared<const Extent>(stored.update)),
      digest_(stored.digest) {}

void Update::Begin(const RoundRecord& round, int num_chunks) {
  {
    core::MutexLock lock(mutex_);
    CHECK(!header_);
    header_ = HeaderOf(round, num_chunks);
  }
  waiters_->Wake(key_);
}

void Update::Append(std::string chunk) {
  {
    core::MutexLock lock(mutex_);
    chunks_.push_back(std::make_shared<const std::string>(std::move(chunk)));
  }
  waiters_->Wake(key_);
}

void Update::End(uint64_t digest) {
  {
    core::MutexLock lock(mutex_);
    CHECK(header_ && header_->num_chunks == static_cast<int>(chunks_.size()));
    digest_ = digest;
  }
  waiters_->Wake(key_);
}

void Update::Abandon(core::Version version, const absl::Status& why) {
  {
    core::MutexLock lock(mutex_);
    CHECK(!header_);
    header_ = {.version = version};
    abandoned_ = why;
  }
  waiters_->Wake(key_);
}

void Update::MoveTo(const Extent& extent) {
  core::MutexLock lock(mutex_);
  CHECK(digest_ && extent.chunk_bytes.size() == chunks_.size());
  extent_ = std::make_shared<const Extent>(extent);
  chunks_ = {};
}

std::vector<ChunkPtr> Update::chunks() const {
  core::MutexLock lock(mutex_);
  return chunks_;
}

std::optional<transport::DownloadHeader> Update::Header(Waiter waiter) {
  core::MutexLock lock(mutex_);
  if (!header_) waiters_->Add(key_, std::move(waiter));
  return header_;
}

ChunkSource::Item Update::Get(size_t index, Waiter waiter) {
  std::shared_ptr<const Extent> extent;
  {
    core::MutexLock lock(mutex_);
    if (!abandoned_.ok()) return {.error = abandoned_};
    if (index < chunks_.size()) return {.chunk = chunks_[index]};
    if (extent_ == nullptr || index >= extent_->chunk_bytes.size()) {
      if (digest_) return {.end = digest_};
      waiters_->Add(key_, std::move(waiter));
      return {};
    }
    extent = extent_;
  }
  absl::StatusOr<std::string> chunk = journal_->ReadChunk(*extent, index);
  if (absl::IsDataLoss(chunk.status())) {
    spdlog::error("a stored update cannot be sent, so that sites get the anchor in its place: {}",
                  chunk.status().ToString());
    return {.error = absl::NotFoundError(chunk.status().message())};
  }
  if (!chunk.ok()) return {.error = chunk.status()};
  return {.chunk = std::make_shared<const std::string>(*std::move(chunk))};
}

Anchor::Anchor(SnapshotReader snapshot, const core::Fragment& fragment, core::AnchorDigest digest, bool already_held,
               const VersionFacts& facts)
    : snapshot_(std::move(snapshot)),
      plan_(codecs::PlanChunks(fragment, codecs::Unencoded())),
      digest_(digest),
      already_held_(already_held),
      facts_(facts) {}

std::optional<transport::DownloadHeader> Anchor::Header(Waiter) {
  return transport::DownloadHeader{.version = digest_.version,
                                   .num_chunks = already_held_ ? 0 : static_cast<int>(2 * plan_.size()),
                                   .already_held = already_held_,
                                   .up_codec = facts_.up ? static_cast<uint32_t>(*facts_.up) : 0,
                                   .run_tokens = facts_.run_tokens};
}

ChunkSource::Item Anchor::Get(size_t index, Waiter) {
  if (already_held_ || index >= 2 * plan_.size()) return {.end = digest_.digest};
  const codecs::ChunkSpan& span = plan_[index % plan_.size()];
  std::vector<float> values(span.values);
  const absl::Status status = index < plan_.size() ? snapshot_.ReadAnchor(span.first_value(), values)
                                                   : snapshot_.ReadMomentum(span.first_value(), values);
  if (!status.ok()) return {.error = status};
  absl::StatusOr<std::string> chunk = codecs::EncodeChunk(span, values, {});
  if (!chunk.ok()) return {.error = chunk.status()};  // a run that has diverged beyond a codec's range
  return {.chunk = std::make_shared<const std::string>(codecs::CompressChunk(*std::move(chunk)))};
}

// ---- Waiters ----

Waiter::Waiter(Waiter&& other) noexcept
    : waits_(std::exchange(other.waits_, false)),
      owned_(other.owned_),
      owner_(std::move(other.owner_)),
      answer_(std::move(other.answer_)) {}

Waiter& Waiter::operator=(Waiter&& other) noexcept {
  if (this == &other) return *this;
  if (waits_) Tell(absl::AbortedError("the coordinator waits for this no longer; retry"));
  waits_ = std::exchange(other.waits_, false);
  owned_ = other.owned_;
  owner_ = std::move(other.owner_);
  answer_ = std::move(other.answer_);
  return *this;
}

Waiter::~Waiter() {
  if (waits_) Tell(absl::AbortedError("the coordinator waits for this no longer; retry"));
}

void Waiter::Tell(const absl::Status& status) {
  waits_ = false;
  if (!gone()) answer_(status);
}

void Waiters::Add(const WaitKey& key, Waiter waiter) {
  std::vector<Waiter> gone;  // released without the lock
  core::MutexLock lock(mutex_);
  CHECK(key.generation >= generation_);
  std::vector<Waiter>& waiting = waiting_[key];
  const auto first_gone = std::partition(waiting.begin(), waiting.end(), [](const Waiter& w) { return !w.gone(); });
  std::move(first_gone, waiting.end(), std::back_inserter(gone));
  waiting.erase(first_gone, waiting.end());
  waiter.Await();
  waiting.push_back(std::move(waiter));
}

template <typename Wanted>
std::vector<Waiter> Waiters::Take(Wanted wanted) {
  std::vector<Waiter> taken;
  core::MutexLock lock(mutex_);
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    if (!wanted(entry->first)) {
      ++entry;
      continue;
    }
    std::ranges::move(entry->second, std::back_inserter(taken));
    entry = waiting_.erase(entry);
  }
  return taken;
}

void Waiters::TellTaken(std::vector<Waiter> taken, const absl::Status& status) {
  for (Waiter& waiter : taken) waiter.Tell(status);
}

void Waiters::Wake(const WaitKey& key) {
  std::vector<Waiter> taken;
  {
    core::MutexLock lock(mutex_);
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) return;
    taken = std::move(found->second);
    waiting_.erase(found);
  }
  TellTaken(std::move(taken), absl::OkStatus());
}

void Waiters::WakeFragment(core::FragmentId fragment) {
  TellTaken(Take([fragment](const WaitKey& key) { return key.fragment == fragment; }), absl::OkStatus());
}

void Waiters::WakeAll() {
  TellTaken(Take([](const WaitKey&) { return true; }), absl::OkStatus());
}

void Waiters::BeginGeneration(uint64_t generation) {
  {
    core::MutexLock lock(mutex_);
    generation_ = std::max(generation_, generation);
  }
  TellTaken(Take([generation](const WaitKey& key) { return key.generation < generation; }),
            absl::AbortedError(absl::StrCat("the model is generation ", generation, " now; retry")));
}

size_t Waiters::size() const {
  core::MutexLock lock(mutex_);
  size_t size = 0;
  for (const auto& [key, waiting] : waiting_) size += waiting.size();
  return size;
}

}  // namespace causeway::server
