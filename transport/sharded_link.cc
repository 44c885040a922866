#include "transport/sharded_link.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"

namespace causeway::transport {

// The listener of one link. Only shard 0 reports the run's state; others learn of it later.
class ShardedLink::ShardListener final : public LinkListener {
 public:
  ShardListener(ShardedLink* link, size_t shard) : link_(link), shard_(shard) {}

  Standing GetStanding() override { return link_->StandingFor(shard_); }
  void OnWelcome(const Welcome& welcome) override { link_->OnWelcome(shard_, welcome); }
  void OnSeedRequest() override { link_->OnSeedRequest(); }
  void OnEntry(const core::Entry& entry) override { link_->OnEntry(shard_, entry); }
  void OnNotice(const std::string& reason) override { ByShardZero(&LinkListener::OnNotice, reason); }
  void OnDrain(const std::string& reason) override { ByShardZero(&LinkListener::OnDrain, reason); }
  void OnHold(bool held) override { ByShardZero(&LinkListener::OnHold, held); }
  // Passes on fragments of all shards: a coordinator requests its own.
  void OnHoldingsWanted(std::function<void(const HeldState&)> show) override {
    Listener()->OnHoldingsWanted(std::move(show));
  }
  void OnFragmentWanted(core::FragmentId fragment, std::function<void(HeldValues)> send) override {
    Listener()->OnFragmentWanted(fragment, std::move(send));
  }
  void OnFailure(const absl::Status& status) override {
    core::MutexLock lock(link_->mutex_);
    link_->listener_->OnFailure({status.code(), absl::StrCat("shard ", shard_, ": ", status.message())});
  }

 private:
  LinkListener* Listener() const {
    core::MutexLock lock(link_->mutex_);
    return link_->listener_;
  }
  template <typename Call, typename Argument>
  void ByShardZero(Call call, const Argument& argument) {
    if (shard_ != 0) return;
    core::MutexLock lock(link_->mutex_);
    (link_->listener_->*call)(argument);
  }

  ShardedLink* const link_;
  const size_t shard_;
};

ShardedLink::ShardedLink(std::vector<std::unique_ptr<ShardLink>> links)
    : links_(std::move(links)),
      said_(links_.size()),
      started_(links_.size(), false),
      from_checkpoint_(links_.size(), false) {
  CHECK(!links_.empty());
  for (size_t i = 0; i < links_.size(); ++i) {
    listeners_.push_back(std::make_unique<ShardListener>(this, i));
    if (i > 0) links_[i]->Resume(session(), {});
  }
}

ShardedLink::~ShardedLink() { Leave(/*finished=*/false, "the program ends"); }

void ShardedLink::Resume(const core::SessionId& session, const Remembered& of_coordinator) {
  const std::vector<std::string> lineages = absl::StrSplit(of_coordinator.lineage, ',');
  const std::vector<std::string> proofs = absl::StrSplit(of_coordinator.proofs, ',');
  for (size_t i = 0; i < links_.size(); ++i) {
    links_[i]->Resume(session, {i < lineages.size() ? lineages[i] : "", i < proofs.size() ? proofs[i] : ""});
  }
}

Remembered ShardedLink::remembered() const {
  std::vector<std::string> lineages, proofs;
  for (const auto& link : links_) {
    Remembered one = link->remembered();
    lineages.push_back(std::move(one.lineage));
    proofs.push_back(std::move(one.proofs));
  }
  return {absl::StrJoin(lineages, ","), absl::StrJoin(proofs, ",")};
}

absl::StatusOr<RunDescription> ShardedLink::Describe(const std::function<bool()>& cancelled) {
  ASSIGN_OR_RETURN(RunDescription description, links_.front()->Describe(cancelled));
  for (size_t i = 1; i < links_.size(); ++i) {
    ASSIGN_OR_RETURN(const RunDescription other, links_[i]->Describe(cancelled));
    if (other.run_id == description.run_id) continue;
    return absl::PermissionDeniedError(
        absl::StrCat("shard ", i, ": expected run ", description.run_id, ", got ", other.run_id));
  }
  return description;
}

void ShardedLink::Start(const core::Manifest& manifest, LinkListener* listener) {
  manifest_ = manifest;
  listener_ = listener;
  {
    core::MutexLock lock(mutex_);
    from_checkpoint_.assign(links_.size(), listener->GetStanding().from_checkpoint);
    started_[0] = true;
  }
  links_.front()->Start(manifest, listeners_.front().get());
}

bool ShardedLink::SendProgress(const core::Progress& progress) {
  for (size_t i = 1; i < links_.size(); ++i) links_[i]->SendProgress(progress);
  return links_.front()->SendProgress(progress);
}

core::LinkProgress ShardedLink::Measured() const {
  core::LinkProgress all;
  for (const auto& link : links_) {
    const core::LinkProgress one = link->Measured();
    all.up_bytes_per_s += one.up_bytes_per_s;
    all.down_bytes_per_s += one.down_bytes_per_s;
    all.up_least_bytes_per_s += one.up_least_bytes_per_s;
    all.down_least_bytes_per_s += one.down_least_bytes_per_s;
    all.round_trip_s = std::max(all.round_trip_s, one.round_trip_s);
    all.channels += one.channels;
    all.redials += one.redials;
    all.silent_s = std::max(all.silent_s, one.silent_s);
    if (all.failing.empty()) all.failing = one.failing;
    if (all.two_coordinators.empty()) all.two_coordinators = one.two_coordinators;
  }
  return all;
}

// Shard 0 first: once it has received this, the others follow it.
void ShardedLink::Hurry() {
  for (const auto& link : links_) link->Hurry();
}

void ShardedLink::Leave(bool finished, const std::string& reason) {
  for (size_t i = 0; i < links_.size(); ++i) links_[i]->Leave(finished && i == 0, reason);
}

// ---- Messages from the shards ----

Standing ShardedLink::StandingFor(size_t shard) {
  core::MutexLock lock(mutex_);
  Standing standing = listener_->GetStanding();
  standing.from_checkpoint = from_checkpoint_[shard];
  // Until the listener learns of a stay, its state may be of a lineage that a shard no longer has.
  if (place_lost_ || (stay_ != 0 && !told_welcome_)) {
    standing.versions.clear();
    standing.admitted.clear();
  }
  return standing;
}

void ShardedLink::OnWelcome(size_t shard, const Welcome& welcome) {
  core::MutexLock lock(mutex_);
  if (shard == 0 && welcome.stay != stay_) BeginStay(welcome);
  if (welcome.stay != stay_) return;  // from an earlier stay
  from_checkpoint_[shard] = false;
  void_ |= !welcome.same_lineage;
  said_[shard].welcome = welcome;
  if (!told_welcome_) return TellWelcome();
  if (shard == 0) {
    if (!welcome.resumed) place_lost_ = false;  // shard 0 knows it, or there was none
    Welcome all = Combined();
    all.kept_transfers &= !std::exchange(transfers_lost_, false);
    if (!all.kept_transfers) DropAll();
    listener_->OnWelcome(all);
  } else if (!welcome.same_lineage || !welcome.kept_transfers) {
    spdlog::warn(
        "shard {} {}; joins anew", shard,
        welcome.same_lineage ? "has another model, or a state that was rebuilt" : "was restored from a backup");
    place_lost_ = transfers_lost_ = true;
    links_.front()->Rejoin();
  }
}

// The others learn of the stay from shard 0; until then they refuse the site, and their links retry.
void ShardedLink::BeginStay(const Welcome& welcome) {
  stay_ = welcome.stay;
  said_.assign(links_.size(), {});
  // A process that continues from its checkpoint has its place, and needs nothing that depends on the others.
  told_welcome_ = told_entry_ = welcome.resumed;
  seed_requested_ = place_lost_ = transfers_lost_ = false;
  if (!welcome.kept_transfers) DropAll();
  for (size_t i = 1; i < links_.size(); ++i) {
    links_[i]->JoinAs(stay_);
    if (!started_[i]) links_[i]->Start(manifest_, listeners_[i].get());
    started_[i] = true;
  }
}

void ShardedLink::DropAll() {
  for (const auto& link : links_) link->DropTransfers();
}

// Shard 0's entry, with the owners' values for their fragments.
Welcome ShardedLink::Combined() const {
  Welcome all = *said_.front().welcome;
  all.lineage = remembered().lineage;
  for (size_t i = 1; i < said_.size(); ++i) {
    if (!said_[i].welcome) continue;
    const Welcome& one = *said_[i].welcome;
    all.last_admitted.resize(std::max(all.last_admitted.size(), one.last_admitted.size()), -1);
    for (size_t p = i; p < one.last_admitted.size(); p += said_.size()) all.last_admitted[p] = one.last_admitted[p];
  }
  return all;
}

void ShardedLink::TellWelcome() {
  if (std::ranges::any_of(said_, [](const Said& said) { return !said.welcome; })) return;
  Welcome all = Combined();
  all.same_lineage = !std::exchange(void_, false);
  for (const Said& said : said_) {
    all.kept_transfers &= all.same_lineage && said.welcome->kept_transfers;
  }
  if (!all.kept_transfers) DropAll();  // begun since for a stay already over
  told_welcome_ = true;
  listener_->OnWelcome(all);
  if (std::exchange(seed_requested_, false)) listener_->OnSeedRequest();
}

void ShardedLink::OnSeedRequest() {
  core::MutexLock lock(mutex_);
  if (told_welcome_) {
    listener_->OnSeedRequest();
  } else {
    seed_requested_ = true;
  }
}

void ShardedLink::OnEntry(size_t shard, const core::Entry& entry) {
  core::MutexLock lock(mutex_);
  if (entry.stay != stay_ || told_entry_) return;
  said_[shard].entry = entry;
  if (std::ranges::any_of(said_, [](const Said& said) { return !said.entry; })) return;
  core::Entry all = *said_.front().entry;
  for (size_t i = 1; i < said_.size(); ++i) {
    const core::Entry& one = *said_[i].entry;
    if (one.versions.size() != all.versions.size() || one.first_versions.size() != all.first_versions.size()) {
      listener_->OnFailure(absl::InternalError(absl::StrCat("shard ", i, " has another number of fragments")));
      return;
    }
    for (size_t p = i; p < all.versions.size(); p += said_.size()) all.versions[p] = one.versions[p];
    for (size_t p = i; p < all.first_versions.size(); p += said_.size()) all.first_versions[p] = one.first_versions[p];
  }
  told_entry_ = true;
  listener_->OnEntry(all);
}

std::unique_ptr<SessionLink> MakeLink(std::vector<LinkOptions> shards) {
  std::vector<std::unique_ptr<ShardLink>> links;
  const auto count = static_cast<int>(shards.size());
  for (LinkOptions& options : shards) {
    options.shard = {static_cast<int>(links.size()), count};
    options.max_up_bytes_per_s /= count;
    options.max_down_bytes_per_s /= count;
    links.push_back(std::make_unique<GrpcLink>(std::move(options)));
  }
  if (count == 1) return std::move(links.front());
  return std::make_unique<ShardedLink>(std::move(links));
}

}  // namespace causeway::transport
