#include "server/run/parameters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/fault_point.h"
#include "core/limits.h"

namespace causeway::server {

Parameters::Parameters(ParametersOptions options)
    : options_(std::move(options)), merge_threads_(options_.merge_threads), slots_(options_.map.num_fragments()) {
  thread_ = core::Thread([this] { Run(); });
}

Parameters::~Parameters() {
  {
    core::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

void Parameters::Set(std::vector<StartingFragment> fragments) {
  {
    core::MutexLock lock(mutex_);
    CHECK(!set_ && fragments.size() == slots_.size());
    for (size_t p = 0; p < slots_.size(); ++p) {
      Slot& slot = slots_[p];
      slot.state = std::move(fragments[p].state);
      slot.committed = slot.snapshot = {slot.state.version, fragments[p].digest};
      slot.committed_facts = slot.snapshot_facts = fragments[p].facts;
      for (const StoredRound& stored : fragments[p].updates) {
        slot.updates[stored.record.base] = std::make_shared<Update>(options_.journal, stored);
      }
      slot.updates[slot.state.version] = UpdateTo(static_cast<core::FragmentId>(p), slot.state.version + 1);
    }
    set_ = true;
  }
  options_.waiters->WakeAll();
}

bool Parameters::is_set() const {
  core::MutexLock lock(mutex_);
  return set_;
}

std::shared_ptr<Update> Parameters::UpdateTo(core::FragmentId fragment, core::Version version) const {
  return std::make_shared<Update>(options_.journal, options_.waiters, KeyOf(fragment, version));
}

void Parameters::Merge(MergeJob job) {
  core::MutexLock lock(mutex_);
  Slot& slot = slots_[job.round.fragment];
  CHECK(slot.updates.contains(job.round.base));
  slot.updates[job.round.base + 1] = UpdateTo(job.round.fragment, job.round.base + 2);
  ++slot.queued;
  queue_.push_back(std::move(job));
  changed_.NotifyAll();
}

bool Parameters::NextSnapshot(core::FragmentId* fragment) const {
  for (size_t p = 0; p < slots_.size(); ++p) {
    if (!slots_[p].snapshot_wanted) continue;
    *fragment = static_cast<core::FragmentId>(p);
    return true;
  }
  return false;
}

void Parameters::Run() {
  while (true) {
    MergeJob* job = nullptr;
    core::FragmentId fragment = 0;
    bool snapshot = false;
    {
      core::MutexLock lock(mutex_);
      lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !queue_.empty() || NextSnapshot(&fragment);
      });
      if (stopping_ || !status_.ok()) return;
      // Joiners come before merges: a snapshot is short, and delays no site.
      snapshot = NextSnapshot(&fragment);
      if (!snapshot) {
        job = &queue_.front();  // stays in place: others only append
        fragment = job->round.fragment;
      }
      working_ = true;
    }
    absl::Status status = snapshot ? Snapshot(fragment) : MergeOne(*job);
    {
      core::MutexLock lock(mutex_);
      if (!snapshot) queue_.pop_front();
      status_ = status;
    }
    options_.waiters->WakeFragment(fragment);
    if (!status.ok()) options_.failed(status);
    core::MutexLock lock(mutex_);
    working_ = false;
    changed_.NotifyAll();
  }
}

namespace {

// Where feedback begins or ends with a change of the settings, the residual begins with zeros, or goes.
void FitResidual(const core::Fragment& fragment, float feedback, core::FragmentState& state) {
  const size_t values = feedback > 0 ? fragment.padded_values() : 0;
  if (state.residual.size() != values) state.residual = core::AlignedFloats(values);
}

}  // namespace

absl::Status Parameters::MergeOne(MergeJob& job) {
  const RoundRecord& round = job.round;
  if (round.rolled_back_to) return RollBack(round);
  Slot& slot = slots_[round.fragment];
  if (job.contributions.empty()) {
    ASSIGN_OR_RETURN(job.contributions, job.load());
  }
  std::shared_ptr<Update> update;
  {
    core::MutexLock lock(mutex_);
    CHECK(slot.state.version == round.base);
    update = slot.updates.at(round.base);
    while (slot.updates.begin()->first <= round.base - core::kRetainedUpdates) slot.updates.erase(slot.updates.begin());
  }
  const core::Fragment& fragment = options_.map.fragment(round.fragment);
  MergeSettings settings = options_.merge(round.fragment, round.base);
  if (round.codecs) settings.down = settings.down.With(round.codecs->down);
  const auto num_chunks = static_cast<int>(codecs::PlanChunks(fragment, settings.down).size());
  // Done here, and not when the round is decided: readers are woken without the lock under which decisions are made.
  update->Begin(round, num_chunks);

  std::vector<std::vector<codecs::ChunkView>> views;
  std::vector<MergeInput> inputs;
  for (const auto& contribution : job.contributions) views.push_back(contribution->Views());
  for (size_t i = 0; i < views.size(); ++i) {
    const RoundRecord::Contributor& contributor = round.contributors[i];
    inputs.push_back({contributor.site, contributor.weight, views[i], contributor.factor});
  }
  settings.outer = round.outer;
  FitResidual(fragment, settings.feedback_down, slot.state);
  settings.threads = &merge_threads_;
  int emitted = 0;
  int64_t bytes = 0;
  const core::Clock::TimePoint begun = core::SystemClock().Now();
  const MergeResult result = server::Merge(fragment, inputs, settings, slot.state, [&](std::string chunk) {
    bytes += static_cast<int64_t>(chunk.size());
    update->Append(std::move(chunk));
    if (++emitted == (num_chunks + 1) / 2) core::FaultPoint("mid_merge");
  });
  slot.state.run_tokens = round.run_tokens;
  const uint64_t digest = result.digest;
  const double merge_s = core::SystemClock().SecondsSince(begun);
  job.contributions.clear();
  bool snapshot = false;
  {  // before the update ends: a site that has taken it finds its version committed
    core::MutexLock lock(mutex_);
    slot.committed = {slot.state.version, digest};
    slot.committed_facts = FactsOf(round);
    slot.bytes_since_snapshot += bytes;
    --slot.queued;
    snapshot = options_.snapshot_every > 0 && slot.committed.version >= slot.snapshot.version + options_.snapshot_every;
  }
  update->End(digest);
  options_.journal->Commit({.merged = {{.fragment = round.fragment,
                                        .base = round.base,
                                        .digest = digest,
                                        .update = update->chunks(),
                                        .stored = [update](const Extent& extent) { update->MoveTo(extent); }}}});
  options_.merged({.round = round, .committed = {round.base + 1, digest}, .result = result, .merge_s = merge_s});
  return snapshot ? Snapshot(round.fragment) : absl::OkStatus();
}

// A joiner needs the snapshot at once, and the version rolled back to need not be kept after it.
absl::Status Parameters::RollBack(const RoundRecord& round) {
  Slot& slot = slots_[round.fragment];
  ASSIGN_OR_RETURN(core::FragmentState state, options_.journal->LoadSnapshot(round.fragment, *round.rolled_back_to));
  state.version = round.base + 1;
  state.run_tokens = round.run_tokens;
  const uint64_t digest = state.Digest();
  std::shared_ptr<Update> update;
  {
    core::MutexLock lock(mutex_);
    CHECK(slot.state.version == round.base);
    update = slot.updates.at(round.base);
    slot.state = std::move(state);
    slot.committed = {slot.state.version, digest};
    slot.committed_facts = FactsOf(round);
    --slot.queued;
  }
  update->Abandon(round.base + 1, absl::NotFoundError(round.reason));
  options_.journal->Commit({.merged = {{.fragment = round.fragment, .base = round.base, .digest = digest}}});
  options_.merged({.round = round, .committed = {round.base + 1, digest}, .result = {.digest = digest}});
  return Snapshot(round.fragment);
}

absl::Status Parameters::Snapshot(core::FragmentId fragment) {
  Slot& slot = slots_[fragment];
  core::AnchorDigest committed;
  {
    core::MutexLock lock(mutex_);
    committed = slot.committed;
  }
  const absl::Status status = options_.journal->SaveSnapshot(fragment, slot.state, committed.digest);
  core::MutexLock lock(mutex_);
  slot.snapshot_wanted = false;
  if (!status.ok()) return status;
  slot.snapshot = committed;
  slot.snapshot_facts = slot.committed_facts;  // only this thread sets it
  slot.bytes_since_snapshot = 0;
  return absl::OkStatus();
}

absl::Status Parameters::Finish() {
  core::MutexLock lock(mutex_);
  if (!set_) return status_;
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !status_.ok() || (queue_.empty() && !working_);
  };
  lock.Wait(changed_, idle);
  for (Slot& slot : slots_) slot.snapshot_wanted = slot.committed.version > slot.snapshot.version;
  changed_.NotifyAll();
  core::FragmentId unused = 0;
  lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !status_.ok() || (idle() && !NextSnapshot(&unused));
  });
  return status_;
}

absl::StatusOr<std::shared_ptr<ChunkSource>> Parameters::UpdateSource(core::FragmentId fragment,
                                                                      core::Version base) const {
  core::MutexLock lock(mutex_);
  const auto found = slots_[fragment].updates.find(base);
  if (found != slots_[fragment].updates.end()) return found->second;
  return absl::NotFoundError(absl::StrCat("the update of fragment ", fragment, " from version ", base, " is not kept"));
}

absl::StatusOr<std::shared_ptr<ChunkSource>> Parameters::AnchorSource(core::FragmentId fragment, core::Version at_least,
                                                                      uint64_t held_digest, Waiter waiter) {
  core::AnchorDigest snapshot;
  VersionFacts facts;
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[fragment];
    // Catching up through the later updates must be cheaper than a newer anchor.
    const bool far_behind = slot.bytes_since_snapshot > options_.map.fragment(fragment).parameters * int64_t{4};
    if (!set_ || slot.snapshot.version < at_least || far_behind) {
      slot.snapshot_wanted |= set_ && slot.committed.version >= at_least;
      options_.waiters->Add(KeyOf(fragment, at_least), std::move(waiter));
      changed_.NotifyAll();
      return nullptr;
    }
    snapshot = slot.snapshot;
    facts = slot.snapshot_facts;
  }
  auto reader = SnapshotReader::Open(options_.journal->SnapshotPath(fragment, snapshot.version));
  if (!reader.ok()) return absl::UnavailableError(reader.status().message());  // replaced just now: the site retries
  const bool already_held = snapshot.version == 0 && held_digest != 0 && held_digest == snapshot.digest;
  return std::make_shared<Anchor>(*std::move(reader), options_.map.fragment(fragment), snapshot, already_held, facts);
}

core::AnchorDigest Parameters::Committed(core::FragmentId fragment) const {
  core::MutexLock lock(mutex_);
  return slots_[fragment].committed;
}

bool Parameters::Merging(core::FragmentId fragment) const {
  core::MutexLock lock(mutex_);
  return slots_[fragment].queued > 0;
}

}  // namespace causeway::server
