#include "tests/bench/bench_run/light_site.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "codecs/chunk_plan.h"

namespace causeway::bench {

using core::FragmentId;
using core::Version;

LightSite::LightSite(std::shared_ptr<const LightRun> run, std::unique_ptr<transport::SessionLink> link)
    : run_(std::move(run)), link_(std::move(link)), slots_(run_->map.num_fragments()) {}

void LightSite::Start() { link_->Start(run_->map.manifest(), this); }

void LightSite::Allow(Version bases) {
  {
    core::MutexLock lock(mutex_);
    allowed_ = bases;
  }
  Advance();
}

void LightSite::WaitEntered() {
  core::MutexLock lock(mutex_);
  lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return entered_; });
}

void LightSite::WaitAdmitted(int64_t count) {
  core::MutexLock lock(mutex_);
  lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return admitted_ >= count; });
}

void LightSite::WaitHolds(Version all) {
  core::MutexLock lock(mutex_);
  lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::ranges::all_of(slots_, [&](const Slot& slot) { return slot.version >= all; });
  });
}

void LightSite::ReportProgress() {
  core::Progress progress;
  {
    core::MutexLock lock(mutex_);
    if (!entered_) return;
    for (const Slot& slot : slots_)
      progress.step = std::max(progress.step, slot.version * run_->config.sync.sync_every);
  }
  link_->SendProgress(progress);
}

void LightSite::Leave() { link_->Leave(/*finished=*/true, "the benchmark is done"); }

transport::Standing LightSite::GetStanding() {
  core::MutexLock lock(mutex_);
  transport::Standing standing;
  if (!entered_) return standing;
  for (const Slot& slot : slots_) standing.versions.push_back(slot.version);
  return standing;
}

void LightSite::OnWelcome(const transport::Welcome& welcome) {
  if (welcome.map != run_->map) End(absl::InternalError("the coordinator has another fragment map"));
  bool first = false;
  {
    core::MutexLock lock(mutex_);
    first = !std::exchange(welcomed_, true);
    if (entered_ && !welcome.resumed) End(absl::AbortedError("dropped from the run"));
    if (!first && !entered_) End(absl::AbortedError("the control stream broke before the site had its place"));
  }
  if (!first) return;  // transfers go on by themselves
  for (FragmentId p = 0; p < run_->map.num_fragments(); ++p) GetAnchor(p);
}

void LightSite::OnSeedRequest() {
  for (const core::Fragment& fragment : run_->map.fragments()) {
    link_->Upload(
        {.initial = true, .fragment = fragment.id, .chunks = MakeInitial(fragment), .done = [](absl::Status verdict) {
           if (!verdict.ok() && !absl::IsCancelled(verdict)) End(verdict);
         }});
  }
}

void LightSite::OnEntry(const core::Entry& entry) {
  {
    core::MutexLock lock(mutex_);
    for (size_t p = 0; p < slots_.size(); ++p) slots_[p].next = entry.first_versions[p];
    entered_ = true;
    changed_.NotifyAll();
  }
  Advance();
}

void LightSite::GetAnchor(FragmentId p) {
  auto version = std::make_shared<Version>(0);
  link_->Download(
      {.kind = transport::DownloadKind::kAnchor,
       .fragment = p,
       .held_digest = run_->initial_digests[p],
       .num_chunks = 2 * codecs::PlanChunks(run_->map.fragment(p), codecs::Unencoded()).size(),
       .on_header = [version](const transport::DownloadHeader& header) { *version = header.version; },
       .on_chunk = [this](int, const std::string& chunk) { received_bytes_ += static_cast<int64_t>(chunk.size()); },
       .done =
           [this, p, version](const absl::Status& status, uint64_t) {
             if (absl::IsCancelled(status)) return;  // it leaves
             if (!status.ok()) End(status);
             Hold(p, *version);
           }});
}

void LightSite::GetUpdate(FragmentId p, Version base) {
  link_->Download(
      {.kind = transport::DownloadKind::kUpdate,
       .fragment = p,
       .version = base,
       .num_chunks = codecs::PlanChunks(run_->map.fragment(p), codecs::DownLeg(run_->config)).size(),
       .on_header = [](const transport::DownloadHeader&) {},
       .on_chunk = [this](int, const std::string& chunk) { received_bytes_ += static_cast<int64_t>(chunk.size()); },
       .done =
           [this, p, base](const absl::Status& status, uint64_t) {
             if (absl::IsCancelled(status)) return;  // it leaves
             if (!status.ok()) End(status);
             Hold(p, base + 1);
           }});
}

void LightSite::Hold(FragmentId p, Version version) {
  bool ready = false;
  {
    core::MutexLock lock(mutex_);
    const bool was_anchor = slots_[p].version < 0;
    slots_[p].version = version;
    ready = was_anchor && std::ranges::all_of(slots_, [](const Slot& slot) { return slot.version >= 0; });
    changed_.NotifyAll();
  }
  if (version < run_->rounds) GetUpdate(p, version);
  if (ready) link_->SendReady();
  Advance();
}

void LightSite::Advance() {
  while (true) {
    FragmentId chosen = -1;
    Version base = 0;
    {
      core::MutexLock lock(mutex_);
      if (!entered_ || sending_ >= run_->in_flight) return;
      for (size_t p = 0; p < slots_.size(); ++p) {
        const Slot& slot = slots_[p];
        if (slot.sending || slot.next >= std::min(allowed_, run_->rounds) || slot.version < slot.next) continue;
        if (chosen < 0 || slot.next < slots_[chosen].next) chosen = static_cast<FragmentId>(p);
      }
      if (chosen < 0) return;
      base = slots_[chosen].next;
      slots_[chosen].sending = true;
      ++sending_;
    }
    Send(chosen, base);
  }
}

void LightSite::Send(FragmentId p, Version base) {
  link_->Upload({.fragment = p,
                 .base = base,
                 .tokens = run_->config.sync.sync_every,
                 .steps = run_->config.sync.sync_every,
                 .chunks = run_->contributions[p],
                 .done = [this, p, base](const absl::Status& verdict) {
                   if (absl::IsCancelled(verdict)) return;  // it leaves
                   if (!verdict.ok()) End(verdict);
                   {
                     core::MutexLock lock(mutex_);
                     slots_[p].sending = false;
                     slots_[p].next = base + 1;
                     --sending_;
                     ++admitted_;
                     changed_.NotifyAll();
                   }
                   Advance();
                 }});
}

}  // namespace causeway::bench
