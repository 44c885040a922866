#include "tests/server/run/direct_coordinator.h"

#include <utility>

#include "core/check.h"

namespace causeway::server {

DirectCoordinator::DirectCoordinator(core::RunConfig config, const core::Shard& shard, const core::Manifest& manifest)
    : map(*core::BuildFragmentMap(manifest, config.sync)), shard_(shard), config_(std::move(config)) {
  StartLife();
}

void DirectCoordinator::Restart() {
  EndLife();
  StartLife();
}

absl::Status DirectCoordinator::RestartAfter(const std::function<void(const std::string& directory)>& change) {
  EndLife();
  change(folder_.path());
  journal = *Journal::Open(JournalOptionsOf());
  return RunExchange::Create({.config = config_, .clock = &clock, .shard = shard_}, journal.get(), *journal->Load())
      .status();
}

void DirectCoordinator::TickAt(int64_t ms) {
  TickUntil(ms, clock, *coordinator);
  Settle();
}

RecordedPeer& DirectCoordinator::Join(const std::string& site, const std::function<void(v1::Join&)>& change) {
  v1::Join join = JoinOf(site);
  if (change) change(join);
  peers_.push_back(std::make_shared<RecordedPeer>());
  coordinator->Join(peers_.back(), join);
  return *(peer[site] = peers_.back().get());
}

void DirectCoordinator::Report(const std::string& site, const std::function<void(v1::Progress&)>& change) {
  v1::Progress progress;
  change(progress);
  coordinator->Handle(input::Progress{peer.at(site), progress});
}

void DirectCoordinator::Leave(const std::string& site, bool finished, const std::string& reason) {
  v1::Leave leave;
  leave.set_finished(finished);
  leave.set_reason(reason);
  coordinator->Handle(input::Leave{peer.at(site), leave});
}

void DirectCoordinator::Start() {
  Join("a");
  Join("b");
  Seed("a");
  for (const char* site : {"a", "b"}) Ready(site);
  Settle();
}

void DirectCoordinator::Seed(const std::string& site) {
  for (int p = 0; p < map.num_fragments(); ++p) {
    if (!shard_.Owns(p)) continue;
    EXPECT_TRUE(SeedFragment(site, p).admitted()) << p;
  }
}

PendingVerdict DirectCoordinator::SeedFragment(const std::string& site, int fragment) {
  v1::UploadHeader header = HeaderOf(site, fragment);
  header.set_initial(true);
  return Upload(header, ChunksOf(map.fragment(fragment), core::CodecId::kFloat32, 0));
}

absl::StatusOr<server::Upload> DirectCoordinator::BeginUpload(const v1::UploadHeader& header) {
  server::Ready ready = coordinator->Handle(input::BeginUpload{header});
  RETURN_IF_ERROR(ready.status);
  return ready.upload;
}

absl::StatusOr<server::Download> DirectCoordinator::BeginDownload(const v1::DownloadRequest& request, Waiter waiter) {
  server::Ready ready = coordinator->Handle(input::BeginDownload{request, waiter});
  RETURN_IF_ERROR(ready.status);
  return ready.download;
}

void DirectCoordinator::Follow(const v1::MembershipUpdate& update) {
  const absl::Status followed = coordinator->Handle(input::Membership{update}).status;
  if (!followed.ok()) coordinator->Fail(followed);
}

PendingVerdict DirectCoordinator::Upload(const v1::UploadHeader& header, const std::vector<std::string>& chunks) {
  const absl::StatusOr<server::Upload> upload = BeginUpload(header);
  EXPECT_TRUE(upload.ok()) << upload.status();
  PendingVerdict verdict;
  if (!upload.ok()) return verdict;
  if (upload->contribution != nullptr) {
    for (const std::string& chunk : chunks) EXPECT_TRUE(upload->contribution->Add(chunk).ok());
  }
  coordinator->CompleteUpload(header, *upload, verdict.taker());
  return verdict;
}

PendingVerdict DirectCoordinator::Contribute(const std::string& site, int fragment, int64_t base, float value) {
  return Upload(HeaderOf(site, fragment, base), ChunksOf(map.fragment(fragment), core::CodecId::kInt4, value));
}

TakenDownload DirectCoordinator::MergeRound(int fragment, int64_t base, float value) {
  for (const char* site : {"a", "b"}) Contribute(site, fragment, base, value);
  return TakeUpdate(fragment, base);
}

TakenDownload DirectCoordinator::TakeUpdate(int fragment, int64_t base) {
  v1::DownloadRequest request = RequestOf("a", fragment);
  request.set_update_base(base);
  return Take(request);
}

TakenDownload DirectCoordinator::TakeAnchor(int fragment, int64_t at_least) {
  v1::DownloadRequest request = RequestOf("a", fragment);
  request.set_anchor_version(at_least);
  return Take(request);
}

v1::DownloadRequest DirectCoordinator::RequestOf(const std::string& site, int fragment) {
  v1::DownloadRequest request;
  *request.mutable_context() = ContextForTest(site);
  request.set_fragment(fragment);
  return request;
}

TakenDownload DirectCoordinator::Take(const v1::DownloadRequest& request) {
  const auto source = Await([&](Waiter waiter) { return BeginDownload(request, std::move(waiter))->source; });
  TakenDownload taken;
  taken.header = *Await([&](Waiter waiter) { return source->Header(std::move(waiter)); });
  while (true) {
    const auto item = Await([&](Waiter waiter) -> std::optional<ChunkSource::Item> {
      const ChunkSource::Item got = source->Get(taken.chunks.size(), std::move(waiter));
      if (got.chunk == nullptr && !got.end && got.error.ok()) return std::nullopt;
      return got;
    });
    if (item->chunk == nullptr) {
      taken.digest = item->end.value_or(0);
      return taken;
    }
    taken.chunks.push_back(*item->chunk);
  }
}

SiteStatus DirectCoordinator::StatusOf(const std::string& site) const {
  for (const SiteStatus& status : coordinator->Status().sites) {
    if (status.name == site) return status;
  }
  ADD_FAILURE() << "no site " << site;
  return {};
}

std::vector<std::string> DirectCoordinator::History(const std::string& kind) const {
  const std::vector<Event> events = *coordinator->journal().History(0, 10'000);
  std::vector<std::string> texts;
  for (const Event& event : events) {
    if (event.kind == kind) texts.push_back(event.text);
  }
  return texts;
}

JournalOptions DirectCoordinator::JournalOptionsOf() const {
  return {.directory = folder_.path(),
          .max_update_log_bytes = config_.checkpoint.max_update_log_bytes,
          .shard = shard_,
          .failed = nullptr};
}

void DirectCoordinator::StartLife() {
  journal = *Journal::Open(JournalOptionsOf());
  coordinator = *RunExchange::Create({.config = config_,
                                      .run_config = "the config",
                                      .clock = &clock,
                                      .board = &board,
                                      .shard = shard_,
                                      .lead = "lead:1",
                                      .bounds = bounds},
                                     journal.get(), *journal->Load());
}

void DirectCoordinator::EndLife() {
  coordinator.reset();
  journal.reset();
  peer.clear();
}

}  // namespace causeway::server
