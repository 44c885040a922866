// Several sites without parameters in one process, timed.
//
//   without --holder   free: as fast as the coordinator goes, then they leave
//   --holder=z         by rounds: for each line on stdin, the sites send one contribution to each fragment, timed from
//                      the first chunk to the last verdict, while z holds the rounds open; then z sends its own, and
//                      they merge
//
// Prints a JSON line for each round, or for the whole.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "codecs/chunk_plan.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/run_config.h"
#include "tests/bench/bench_run/bench_run.h"
#include "tests/bench/bench_run/wire.h"
#include "transport/coordinator_link.h"

namespace causeway::bench {

// A site that holds no parameters: it joins, sends and receives what a site would, over the real wire, and throws away
// what it gets. So one small machine plays many large sites.
//
//   OnEntry, update of base v is here ─► Advance: upload to base v + 1, as far as Allow lets it ─► verdict
//                                               download the update of base v + 1 ─► thrown away ─┘
//
// Synchronous mode. Fragments are independent and go as fast as the coordinator; at most `in_flight` uploads at a time,
// lowest base first. A breach of the protocol ends the program with a message. Thread-safe.

// Shared by the sites of one process.
struct LightRun : DescribedRun {
  std::vector<Chunks> contributions;      // of each fragment
  std::vector<uint64_t> initial_digests;  // offered, so that no site downloads what it could make; 0: none
  core::Version rounds = 0;               // of each fragment
  int in_flight = 0;
};

class LightSite final : public IdleListener {
 public:
  // The link has been asked to Describe.
  LightSite(std::shared_ptr<const LightRun> run, std::unique_ptr<transport::SessionLink> link);

  void Start();
  void Allow(core::Version bases);    // sends contributions to bases below it alone
  void WaitEntered();                 // it has its place
  void WaitAdmitted(int64_t count);   // verdicts ever
  void WaitHolds(core::Version all);  // of each fragment at least that version
  void ReportProgress();              // keeps its lease
  void Leave();

  int64_t received_bytes() const { return received_bytes_; }

  transport::Standing GetStanding() override;
  void OnWelcome(const transport::Welcome& welcome) override;
  void OnSeedRequest() override;
  void OnEntry(const core::Entry& entry) override;

 private:
  struct Slot {
    core::Version version = -1;  // of its anchor, whose values it does not keep
    core::Version next = 0;      // base of the next contribution
    bool sending = false;
  };

  void GetAnchor(core::FragmentId p);
  void GetUpdate(core::FragmentId p, core::Version base);
  void Advance();
  void Send(core::FragmentId p, core::Version base);
  void Hold(core::FragmentId p, core::Version version);

  const std::shared_ptr<const LightRun> run_;
  const std::unique_ptr<transport::SessionLink> link_;
  std::atomic<int64_t> received_bytes_ = 0;

  core::Mutex mutex_;
  core::Condition changed_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool entered_ ABSL_GUARDED_BY(mutex_) = false;
  core::Version allowed_ ABSL_GUARDED_BY(mutex_) = 0;
  int sending_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t admitted_ ABSL_GUARDED_BY(mutex_) = 0;
};

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

namespace {

using Sites = std::span<const std::unique_ptr<LightSite>>;

absl::StatusOr<std::shared_ptr<LightRun>> MakeRun(const std::string& site) {
  ASSIGN_OR_RETURN(const auto link, LinkOf(site));
  auto run = std::make_shared<LightRun>();
  DescribedRun& described = *run;
  ASSIGN_OR_RETURN(described, Describe(*link));
  for (const core::Fragment& fragment : run->map.fragments()) {
    run->contributions.push_back(MakeContribution(fragment, run->config));
    run->initial_digests.push_back(Given<bool>("own_initial") ? InitialDigest(fragment) : 0);
  }
  run->rounds = Given<int64_t>("rounds");
  run->in_flight = Given<int>("in_flight");
  return run;
}

void PrintSpeed(double seconds, int64_t bytes, Sites sites) {
  int64_t received = 0;
  for (const auto& site : sites) received += site->received_bytes();
  Print({{"seconds", seconds},
         {"contribution_bytes", bytes},
         {"megabytes_per_s", static_cast<double>(bytes) * 1e-6 / seconds},
         {"received_bytes", received}});
}

void ByRounds(Sites sites, LightSite& holder, const LightRun& run, int64_t bytes_of_site) {
  std::string line;
  for (core::Version round = 0; round < run.rounds && std::getline(std::cin, line); ++round) {
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    for (const auto& site : sites) site->Allow(round + 1);
    for (const auto& site : sites) site->WaitAdmitted((round + 1) * run.map.num_fragments());
    const double seconds = core::SystemClock().SecondsSince(begin);
    holder.Allow(round + 1);
    for (const auto& site : sites) site->WaitHolds(round + 1);
    holder.WaitHolds(round + 1);
    holder.WaitAdmitted((round + 1) * run.map.num_fragments());
    PrintSpeed(seconds, bytes_of_site * static_cast<int64_t>(sites.size()), sites);
  }
}

}  // namespace

absl::Status PlaySites() {
  std::vector<std::string> names = NamesOfSites();
  const std::string holder = Given<std::string>("holder");
  if (!holder.empty()) names.push_back(holder);
  ASSIGN_OR_RETURN(const std::shared_ptr<LightRun> run, MakeRun(names.front()));
  std::vector<std::unique_ptr<LightSite>> sites;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(auto link, LinkOf(name));
    RETURN_IF_ERROR(link->Describe([] { return false; }).status());
    sites.push_back(std::make_unique<LightSite>(run, std::move(link)));
  }
  for (const auto& site : sites) site->Start();
  std::jthread heart([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const auto& site : sites) site->ReportProgress();
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  });
  for (const auto& site : sites) site->WaitEntered();
  spdlog::info("{} sites have entered", sites.size());
  int64_t bytes = 0;  // of one site in one round
  for (const Chunks& chunks : run->contributions) bytes += PayloadBytes(*chunks);
  if (!holder.empty()) {
    ByRounds(std::span(sites).first(sites.size() - 1), *sites.back(), *run, bytes);
  } else {
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    for (const auto& site : sites) site->Allow(run->rounds);
    for (const auto& site : sites) site->WaitHolds(run->rounds);
    PrintSpeed(core::SystemClock().SecondsSince(begin), bytes * static_cast<int64_t>(sites.size()) * run->rounds,
               sites);
  }
  heart.request_stop();
  heart.join();
  for (const auto& site : sites) site->Leave();
  return absl::OkStatus();
}

}  // namespace causeway::bench
