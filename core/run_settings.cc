#include "core/run_settings.h"

#include <algorithm>
#include <utility>

#include "core/digest.h"
#include "core/limits.h"

namespace causeway::core {

uint64_t DigestOf(uint64_t parent, const SettingsRevision& revision) {
  std::string text;
  const auto add = [&text](const auto& number) {
    const auto wide = static_cast<uint64_t>(number);
    for (int byte = 0; byte < 8; ++byte) text.push_back(static_cast<char>(wide >> (8 * byte)));
  };
  add(parent);
  add(revision.number);
  add(revision.step);
  add(revision.versions.size());
  for (const Version version : revision.versions) add(version);
  add(revision.nonce);
  text += revision.run_config;
  const uint64_t digest = Xxh3(text.data(), text.size());
  return digest == 0 ? 1 : digest;
}

// ---- SettingsChain ----

const SettingsRevision* SettingsChain::Find(int64_t number) const {
  const auto found = std::ranges::find(revisions, number, &SettingsRevision::number);
  return found == revisions.end() ? nullptr : &*found;
}

std::optional<uint64_t> SettingsChain::DigestAt(int64_t number) const {
  if (number == 0) return 0;
  if (const SettingsRevision* const found = Find(number)) return found->digest;
  if (revisions.empty() || revisions.front().number != number + 1 || before == 0) return std::nullopt;
  return before;
}

bool SettingsChain::IsChained() const {
  uint64_t parent = before;
  for (size_t i = 0; i < revisions.size(); ++i) {
    const SettingsRevision& one = revisions[i];
    const bool follows = i == 0 ? (one.number == 1) == (before == 0) : one.number == revisions[i - 1].number + 1;
    if (!follows || one.digest != DigestOf(parent, one)) return false;
    parent = one.digest;
  }
  return true;
}

// ---- RunSettings ----

const RunConfig& RunSettings::newest() const {
  MutexLock lock(mutex_);
  return later_.empty() ? first_ : later_.back()->config;
}

const RunConfig& RunSettings::Of(int64_t number) const {
  MutexLock lock(mutex_);
  return (*std::ranges::find(later_, number, [](const auto& later) { return later->revision.number; }))->config;
}

const RunConfig& RunSettings::AtStep(Step t) const {
  MutexLock lock(mutex_);
  const auto holds = [t](const auto& later) { return later->from <= t; };
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

uint64_t RunSettings::digest() const {
  MutexLock lock(mutex_);
  return later_.empty() ? before_ : later_.back()->revision.digest;
}

std::vector<SettingsRevision> RunSettings::After(int64_t number) const {
  SettingsChain chain = Chain();
  std::erase_if(chain.revisions, [number](const SettingsRevision& one) { return one.number <= number; });
  return std::move(chain.revisions);
}

SettingsChain RunSettings::Chain() const {
  MutexLock lock(mutex_);
  size_t first = later_.size(), bytes = 0;
  while (first > 0 && later_.size() - first < SettingsChain::kMost) {
    bytes += later_[first - 1]->revision.run_config.size();
    if (bytes > kMaxSettingsBytes && first < later_.size()) break;
    --first;
  }
  SettingsChain chain{.before = first == 0 ? before_ : later_[first - 1]->revision.digest, .revisions = {}};
  for (size_t i = first; i < later_.size(); ++i) chain.revisions.push_back(later_[i]->revision);
  return chain;
}

std::vector<RunSettings::Change> RunSettings::Pending(Step step) const {
  MutexLock lock(mutex_);
  std::vector<Change> pending;
  for (auto later = later_.rbegin(); later != later_.rend() && (*later)->revision.step > step; ++later) {
    const SettingsRevision& one = (*later)->revision;
    if (!pending.empty() && one.step >= pending.back().step) continue;  // a later one has taken its place
    pending.push_back({one.step, one.versions, &(*later)->config});
  }
  std::ranges::reverse(pending);
  return pending;
}

bool RunSettings::Agrees(const SettingsChain& theirs, const std::vector<Version>& versions) const {
  const SettingsChain known = Chain();
  const bool digests = std::ranges::all_of(theirs.revisions, [](const auto& one) { return one.digest != 0; });
  if (known.revisions.empty() || !digests) return true;  // there is nothing to compare
  const int64_t newest = known.revisions.back().number;
  if ((theirs.revisions.empty() ? 0 : theirs.revisions.back().number) < newest) return false;
  for (const SettingsRevision& one : known.revisions) {
    const std::optional<uint64_t> other = theirs.DigestAt(one.number);
    if (other && one.digest != 0 && *other != one.digest) return false;
  }
  const SettingsRevision& first = theirs.revisions.front();
  if (first.number <= newest + 1) return true;
  return std::ranges::equal(first.versions, versions, std::ranges::less_equal());
}

bool RunSettings::Add(SettingsRevision revision, RunConfig config, Step from) {
  MutexLock lock(mutex_);
  if (!later_.empty() && revision.number <= later_.back()->revision.number) return false;
  from = std::max(from, revision.step);
  later_.push_back(std::make_unique<const Later>(Later{std::move(revision), std::move(config), from}));
  return true;
}

void RunSettings::BeginAfter(uint64_t before) {
  MutexLock lock(mutex_);
  if (later_.empty()) before_ = before;
}

void RunSettings::Forget() {
  MutexLock lock(mutex_);
  std::ranges::move(later_, std::back_inserter(forgotten_));
  later_.clear();
  before_ = 0;
}

}  // namespace causeway::core
