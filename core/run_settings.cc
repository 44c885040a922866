#include "core/run_settings.h"

#include <algorithm>
#include <utility>

namespace causeway::core {

const RunConfig& RunSettings::newest() const {
  MutexLock lock(mutex_);
  return later_.empty() ? first_ : later_.back()->config;
}

const RunConfig& RunSettings::AtStep(Step t) const {
  MutexLock lock(mutex_);
  const auto holds = [t](const auto& later) { return later->revision.step <= t; };
  const auto last = std::find_if(later_.rbegin(), later_.rend(), holds);
  return last == later_.rend() ? first_ : (*last)->config;
}

const RunConfig& RunSettings::AtVersion(FragmentId fragment, Version base) const {
  MutexLock lock(mutex_);
  const Later* const later = Holding(fragment, base);
  return later == nullptr ? first_ : later->config;
}

int64_t RunSettings::RevisionAt(FragmentId fragment, Version base) const {
  MutexLock lock(mutex_);
  const Later* const later = Holding(fragment, base);
  return later == nullptr ? 0 : later->revision.number;
}

const RunSettings::Later* RunSettings::Holding(FragmentId fragment, Version base) const {
  const auto holds = [&](const auto& later) { return later->revision.versions[fragment] <= base; };
  const auto last = std::find_if(later_.rbegin(), later_.rend(), holds);
  return last == later_.rend() ? nullptr : last->get();
}

int64_t RunSettings::revision() const {
  MutexLock lock(mutex_);
  return later_.empty() ? 0 : later_.back()->revision.number;
}

std::vector<SettingsRevision> RunSettings::After(int64_t number) const {
  MutexLock lock(mutex_);
  std::vector<SettingsRevision> after;
  for (const auto& later : later_) {
    if (later->revision.number > number) after.push_back(later->revision);
  }
  return after;
}

bool RunSettings::Add(SettingsRevision revision, RunConfig config) {
  MutexLock lock(mutex_);
  if (!later_.empty() && revision.number <= later_.back()->revision.number) return false;
  later_.push_back(std::make_unique<const Later>(Later{std::move(revision), std::move(config)}));
  return true;
}

void RunSettings::Forget() {
  MutexLock lock(mutex_);
  std::ranges::move(later_, std::back_inserter(forgotten_));
  later_.clear();
}

}  // namespace causeway::core
