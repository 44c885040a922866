#include "server/service/parameters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limits.h"

namespace causeway::server {

Parameters::Parameters(core::FragmentMap map, MergeSettings settings, OnMerged merged)
    : map_(std::move(map)), settings_(settings), merged_(std::move(merged)), slots_(map_.num_fragments()) {
  thread_ = std::thread([this] { Run(); });
}

Parameters::~Parameters() {
  {
    core::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Parameters::Set(std::vector<SavedFragment> fragments) {
  std::vector<std::function<void()>> waiting;
  {
    core::MutexLock lock(mutex_);
    CHECK(!set_ && fragments.size() == slots_.size());
    for (size_t p = 0; p < slots_.size(); ++p) {
      Slot& slot = slots_[p];
      slot.state = std::make_shared<core::FragmentState>(*fragments[p].state);
      fragments[p].state.reset();
      slot.committed = {slot.state->version, slot.state->Digest()};
      for (const SavedUpdate& saved : fragments[p].updates) slot.updates[saved.base] = std::make_shared<Update>(saved);
      slot.updates[slot.state->version] = std::make_shared<Update>();
    }
    set_ = true;
    waiting.swap(waiting_);
  }
  for (const auto& wake : waiting) wake();
}

bool Parameters::is_set() const {
  core::MutexLock lock(mutex_);
  return set_;
}

void Parameters::Merge(MergeJob job) {
  core::MutexLock lock(mutex_);
  Slot& slot = slots_[job.fragment];
  CHECK(slot.updates.contains(job.base));
  slot.updates[job.base + 1] = std::make_shared<Update>();
  ++slot.queued;
  queue_.push_back(std::move(job));
  changed_.notify_all();
}

void Parameters::Finish() {
  core::MutexLock lock(mutex_);
  lock.Wait(changed_, [this] { return queue_.empty() && !working_; });
}

void Parameters::Run() {
  while (true) {
    MergeJob* job = nullptr;
    {
      core::MutexLock lock(mutex_);
      lock.Wait(changed_, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = &queue_.front();  // stays in place: others only append
      working_ = true;
    }
    MergeOne(*job);
    std::vector<std::function<void()>> waiting;
    core::AnchorDigest committed;
    const core::FragmentId fragment = job->fragment;
    {
      core::MutexLock lock(mutex_);
      committed = slots_[fragment].committed;
      queue_.pop_front();
      waiting.swap(waiting_);
    }
    for (const auto& wake : waiting) wake();
    merged_(fragment, committed);
    core::MutexLock lock(mutex_);
    working_ = false;
    changed_.notify_all();
  }
}

void Parameters::MergeOne(const MergeJob& job) {
  std::shared_ptr<core::FragmentState> state;
  std::shared_ptr<Update> update;
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[job.fragment];
    CHECK(slot.state->version == job.base);
    state = std::exchange(slot.state, nullptr);
    update = slot.updates.at(job.base);
    while (slot.updates.begin()->first <= job.base - core::kRetainedUpdates) slot.updates.erase(slot.updates.begin());
  }
  // Here, and not when the round is decided: readers are woken without the lock that decisions are made under.
  const auto num_chunks = codecs::PlanChunks(map_.fragment(job.fragment), settings_.down).size();
  update->Begin({.version = job.base + 1,
                 .outer = settings_.outer,
                 .merged = job.contributors,
                 .sites = job.sites,
                 .num_chunks = static_cast<int>(num_chunks)});
  // New readers find no state now; one who holds it still gets to read it as it is.
  if (state.use_count() > 1) state = std::make_shared<core::FragmentState>(*state);

  const std::vector<float> weights = NormalizedWeights(job.weights);
  std::vector<std::vector<codecs::ChunkView>> views;
  std::vector<MergeInput> inputs;
  for (const auto& contribution : job.contributions) views.push_back(contribution->Views());
  for (size_t i = 0; i < views.size(); ++i) inputs.push_back({job.contributors[i], weights[i], views[i]});
  const uint64_t digest = server::Merge(map_.fragment(job.fragment), inputs, settings_, *state,
                                        [&](std::string chunk) { update->Append(std::move(chunk)); });
  {
    core::MutexLock lock(mutex_);
    Slot& slot = slots_[job.fragment];
    slot.committed = {state->version, digest};
    slot.state = std::move(state);
    --slot.queued;
  }
  update->End(digest);
}

absl::StatusOr<std::shared_ptr<ChunkSource>> Parameters::UpdateSource(core::FragmentId fragment,
                                                                      core::Version base) const {
  core::MutexLock lock(mutex_);
  const auto found = slots_[fragment].updates.find(base);
  if (found != slots_[fragment].updates.end()) return found->second;
  return absl::NotFoundError(absl::StrCat(
      "the update of fragment ", fragment, " from version ", base, " is not kept; the open round is of version ",
      slots_[fragment].updates.empty() ? 0 : slots_[fragment].updates.rbegin()->first));
}

std::shared_ptr<ChunkSource> Parameters::AnchorSource(core::FragmentId fragment, core::Version at_least,
                                                      uint64_t held_digest, std::function<void()> wake) {
  core::MutexLock lock(mutex_);
  const Slot& slot = slots_[fragment];
  if (slot.state == nullptr || slot.state->version < at_least) {
    waiting_.push_back(std::move(wake));
    return nullptr;
  }
  const bool already_held = slot.committed.version == 0 && held_digest != 0 && held_digest == slot.committed.digest;
  return std::make_shared<Anchor>(slot.state, map_.fragment(fragment), already_held);
}

core::AnchorDigest Parameters::Committed(core::FragmentId fragment) const {
  core::MutexLock lock(mutex_);
  return slots_[fragment].committed;
}

bool Parameters::Merging(core::FragmentId fragment) const {
  core::MutexLock lock(mutex_);
  return slots_[fragment].queued > 0;
}

std::optional<std::vector<SavedFragment>> Parameters::Save() const {
  core::MutexLock lock(mutex_);
  if (!set_ || !queue_.empty()) return std::nullopt;
  std::vector<SavedFragment> fragments;
  for (const Slot& slot : slots_) {
    SavedFragment& fragment = fragments.emplace_back();
    fragment.state = slot.state;
    for (const auto& [base, update] : slot.updates) {
      if (auto saved = update->Save()) fragment.updates.push_back(*std::move(saved));
    }
  }
  return fragments;
}

}  // namespace causeway::server
