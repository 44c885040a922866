#include "server/standby/standby.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/random.h"
#include "server/store/state_log.h"
#include "transport/backoff.h"
#include "transport/first_address.h"
#include "transport/messages.h"

namespace causeway::server {
namespace {

constexpr int64_t kAskAgainMs = 200;
constexpr uint64_t kMostEpoch = uint64_t{1} << 52;  // a million promotions
constexpr auto kWatch = std::chrono::seconds(5);
constexpr auto kHandOver = std::chrono::seconds(15);

// The leader rejects this standby, or what it asks for.
bool IsFinal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status) ||
         absl::IsInvalidArgument(status);
}

absl::StatusOr<std::vector<core::Address>> Others(const std::vector<std::string>& standbys, const std::string& own) {
  std::vector<core::Address> others;
  for (const std::string& text : standbys) {
    if (text.find(':') == std::string::npos || text == own) continue;
    ASSIGN_OR_RETURN(core::Address other, core::ParseAddress("standbys", text));
    others.push_back(std::move(other));
  }
  return others;
}

class OthersOverGrpc final : public CoordinatorCalls {
 public:
  OthersOverGrpc(const transport::ClientFlags& client, core::RunId run) : client_(client), run_(std::move(run)) {}

  absl::StatusOr<transport::Asked> Ask(const std::vector<core::Address>& addresses, bool starts) override {
    ASSIGN_OR_RETURN(const transport::ChannelOptions options, OptionsFor(addresses.front()));
    return transport::FindLeader(addresses, options, run_, starts);
  }

  absl::StatusOr<std::unique_ptr<ReplicateCall>> Replicate(const core::Address& leader,
                                                           grpc::ClientContext& context) override {
    ASSIGN_OR_RETURN(const transport::ChannelOptions options, OptionsFor(leader));
    const auto channel = transport::MakeChannel(leader, options, transport::Traffic::kBulk);
    return v1::Coordinator::NewStub(channel)->Replicate(&context);
  }

  void Cancel(grpc::ClientContext& context) override { context.TryCancel(); }

 private:
  absl::StatusOr<transport::ChannelOptions> OptionsFor(const core::Address& address) const {
    auto options = transport::ReadClientFlags(client_, address);
    if (options.ok()) return options;
    return absl::UnavailableError(
        absl::StrCat("the other coordinators cannot be asked (--membership_tls_cert, --membership_tls_key, "
                     "--membership_token_file): ",
                     std::string(options.status().message())));
  }

  const transport::ClientFlags client_;
  const core::RunId run_;
};

// A state that was begun anew: one that is completed from the sites' has another lineage, too, and a later term.
bool IsAnother(const std::string& lineage, uint64_t epoch, const LastKnown& last) {
  return !last.lineage.empty() && lineage != last.lineage && TermOf(epoch) <= TermOf(last.epoch);
}

MirrorPiece PieceOf(const v1::ReplicateReply& reply) {
  MirrorPiece piece{
      .name = reply.name(), .offset = reply.offset(), .bytes = reply.contents(), .removed = reply.removed()};
  if (reply.hash().size() == piece.mark.hash.size()) {
    piece.mark.sequence = reply.sequence();
    std::ranges::copy(std::as_bytes(std::span(reply.hash())), piece.mark.hash.begin());
  }
  return piece;
}

}  // namespace

std::unique_ptr<CoordinatorCalls> NewCoordinatorCalls(const transport::ClientFlags& client, const core::RunId& run) {
  return std::make_unique<OthersOverGrpc>(client, run);
}

absl::StatusOr<std::optional<Elsewhere>> LeaderElsewhere(const std::string& state_dir, const std::string& own,
                                                         const std::optional<core::Address>& standby_of,
                                                         CoordinatorCalls& others, bool again) {
  ASSIGN_OR_RETURN(std::optional<StandbyNote> note, ReadStandbyNote(state_dir));
  const bool promoted = note && note->promoted;
  if (!promoted && standby_of && (note || StateLog::Files(state_dir).Numbers().empty())) {
    return Elsewhere{*standby_of};
  }
  if (!promoted && note) {  // a copy: it stays one
    ASSIGN_OR_RETURN(core::Address leader, core::ParseAddress("standby.json", note->leader));
    return Elsewhere{std::move(leader)};
  }
  ASSIGN_OR_RETURN(const KnownStandbys known, ReadKnownStandbys(state_dir));
  if (!promoted && !standby_of && known.addresses.empty()) return std::nullopt;
  uint64_t mark = 0;
  if (promoted && !note->own) {
    ASSIGN_OR_RETURN(mark, StateLog::ReadMark(state_dir));
  }
  ASSIGN_OR_RETURN(const LastKnown last, ReadLastKnown(state_dir, mark));
  ASSIGN_OR_RETURN(std::vector<core::Address> addresses, Others(promoted ? last.coordinators : known.addresses, own));
  if (standby_of && std::ranges::count(addresses, standby_of->Text(), &core::Address::Text) == 0) {
    addresses.push_back(*standby_of);
  }
  if (addresses.empty()) return std::nullopt;
  if (promoted) {  // before its first start another one may have been promoted, too
    const absl::StatusOr<transport::Asked> asked = others.Ask(addresses);
    if (!asked.ok() || !asked->leader || TermOf(asked->epoch) <= TermOf(last.epoch)) return std::nullopt;
    spdlog::warn("the standby at {} leads the run: this one, which was promoted, too, becomes its standby",
                 asked->leader->Text());
    note->promoted = false;
    RETURN_IF_ERROR(WriteStandbyNote(state_dir, *note));
    return Elsewhere{*asked->leader, /*is_later=*/true};
  }
  const auto level = again ? spdlog::level::debug : spdlog::level::warn;
  bool takes_back = false;
  for (const bool starts : {false, true}) {  // the second bars their promotions, so that all looks well before
    const absl::StatusOr<transport::Asked> answered = others.Ask(addresses, starts);
    if (!answered.ok()) spdlog::log(level, "{}", std::string(answered.status().message()));
    const transport::Asked asked = answered.ok() ? *answered : transport::Asked{.silent = addresses};
    if (asked.leader && !IsAnother(asked.lineage, asked.epoch, last)) {
      spdlog::log(level, "the standby at {} leads the run: this coordinator becomes its standby", asked.leader->Text());
      return Elsewhere{*asked.leader, asked.epoch > last.epoch};
    }
    if (asked.leader) {
      spdlog::warn("{} leads a run of lineage {}, which is not that of {}: it is not followed", asked.leader->Text(),
                   asked.lineage, state_dir);
    }
    if (asked.seen > last.epoch) {
      spdlog::log(level, "{} has seen epoch {} of the run, this directory {}: waits until that one leads",
                  asked.latest->Text(), asked.seen, last.epoch);
      return Elsewhere{*asked.latest, /*is_later=*/true};
    }
    const auto heir = asked.marks.find(known.handed_to);
    takes_back = heir != asked.marks.end() && heir->second < known.handed_at;
    if (!known.handed_to.empty() && known.handed_to != own && !takes_back) {
      ASSIGN_OR_RETURN(const core::Address to, core::ParseAddress("standbys.json", known.handed_to));
      spdlog::log(level, "the run was handed over to {}, which does not lead: waits for it, or for causewayctl promote",
                  known.handed_to);
      return Elsewhere{to};
    }
    if (asked.silent.empty()) continue;
    spdlog::log(level,
                "the standby at {} does not answer, and may lead: waits for the run's sites, for it, or for "
                "causewayctl promote --at={} --leader_is_stopped",
                asked.silent.front().Text(), own);
    return Elsewhere{asked.silent.front()};
  }
  if (takes_back) {
    spdlog::warn("{} has not heard that the run was handed over to it: leads on", known.handed_to);
    RETURN_IF_ERROR(WriteKnownStandbys(state_dir, {.addresses = known.addresses, .handed_to = ""}));
  }
  return std::nullopt;
}

LeaderWatch::LeaderWatch(const Journal& journal, CoordinatorCalls& others,
                         std::function<void(const absl::Status&)> deposed)
    : journal_(journal), others_(others), deposed_(std::move(deposed)), thread_([this] {
        bool ends = false;
        while (!ends && !Ask()) {
          core::MutexLock lock(mutex_);
          ends = lock.WaitFor(changed_, kWatch, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
        }
      }) {}

LeaderWatch::~LeaderWatch() {
  {
    const core::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

bool LeaderWatch::Ask() {
  const auto others = Others(journal_.mirrors().known(), /*own=*/"");
  if (!others.ok() || others->empty() || !journal_.mirrors().all().empty()) return false;
  const absl::StatusOr<transport::Asked> asked = others_.Ask(*others);
  if (!asked.ok() || !asked->leader || asked->epoch <= journal_.identity().epoch) return false;
  deposed_(absl::FailedPreconditionError(absl::StrCat("a standby leads this run: that at ", asked->leader->Text(),
                                                      ", in epoch ", asked->epoch, "; this one was in epoch ",
                                                      journal_.identity().epoch)));
  return true;
}

void Waiting::SiteLooks(const core::SiteId& site, uint64_t epoch, int64_t now_ms) {
  if (seen_.size() <= core::kMaxSites || seen_.contains(site)) seen_[site] = {std::min(epoch, kMostEpoch), now_ms};
}

bool Waiting::MayLead(const std::set<core::SiteId>& sites, uint64_t epoch, int64_t now_ms) const {
  if (sites.empty() || later_leads || OtherStarts(now_ms)) return false;
  return std::ranges::all_of(sites, [&](const core::SiteId& site) {
    const auto seen = seen_.find(site);
    return seen != seen_.end() && now_ms - seen->second.at_ms <= kSeenMs && seen->second.epoch <= epoch;
  });
}

uint64_t Waiting::latest() const {
  uint64_t latest = 0;
  for (const auto& [site, seen] : seen_) latest = std::max(latest, seen.epoch);
  return latest;
}

absl::StatusOr<std::unique_ptr<Standby>> Standby::Open(StandbyOptions options) {
  ASSIGN_OR_RETURN(auto directory, MirrorDirectory::Open(options.state_dir, options.leader.Text()));
  std::unique_ptr<Standby> standby(new Standby(std::move(options), std::move(directory)));
  ASSIGN_OR_RETURN(standby->last_, standby->directory_->ReadLastKnown(standby->directory_->mark().sequence));
  ASSIGN_OR_RETURN(const KnownStandbys known, ReadKnownStandbys(standby->options_.state_dir));
  if (!known.handed_to.empty()) standby->last_.sites.clear();  // whatever they say
  return standby;
}

Standby::Standby(StandbyOptions options, std::unique_ptr<MirrorDirectory> directory)
    : options_(std::move(options)), directory_(std::move(directory)) {
  copied_.mirrored = directory_->mark().sequence;
  waiting_.later_leads = options_.later_leads;
}

absl::Status Standby::Follow(const std::string& address, const std::string& grpc, const std::string& http) {
  RETURN_IF_ERROR(WriteAddresses(options_.state_dir, grpc, http));
  address_ = address;
  thread_ = core::Thread([this] { Run(); });
  return absl::OkStatus();
}

Standby::~Standby() { Stop(); }

void Standby::Interrupt() {
  const core::MutexLock lock(mutex_);
  stopping_ = true;
  if (context_ != nullptr) options_.others->Cancel(*context_);
  changed_.NotifyAll();
}

void Standby::Stop() {
  Interrupt();
  if (thread_.joinable()) thread_.Join();
}

bool Standby::Stopping() const {
  const core::MutexLock lock(mutex_);
  return stopping_;
}

absl::Status Standby::status() const {
  const core::MutexLock lock(mutex_);
  return status_;
}

absl::Status Standby::CheckContext(const v1::Context& context) const {
  return transport::CheckCaller(context, context.run_id().empty() ? context.run_id() : options_.run_id);
}

void Standby::Run() {
  for (int attempt = 0; !Stopping(); ++attempt) {
    const int64_t begun_ms = clock_.NowMs();
    absl::Status status = LeadIfDue();
    if (status.ok() && !Stopping()) status = CopyOnce();
    if (clock_.NowMs() - begun_ms > kHeardMs) attempt = 0;
    core::MutexLock lock(mutex_);
    if (stopping_) return;
    copied_.said = std::string(status.message());
    if (IsFinal(status)) {
      status_ =
          absl::FailedPreconditionError(absl::StrCat("--standby_of=", options_.leader.Text(), ": ", copied_.said));
      return;
    }
    const int64_t wait_ms = transport::BackoffMs(attempt, core::DeviceRandom());
    spdlog::warn("the leader at {}: {}; asks again in {} ms", options_.leader.Text(), copied_.said, wait_ms);
    lock.WaitFor(changed_, std::chrono::milliseconds(wait_ms),
                 [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
  }
}

// A copy whose last record hands over to this one: the leader's last word may be lost, the record says the same. Or a
// former leader that no other bars any more.
absl::Status Standby::LeadIfDue() {
  const uint64_t mark = directory_->mark().sequence;
  if (directory_->is_copy()) {
    if (mark == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const LastKnown last, directory_->ReadLastKnown(mark));
    return !last.handed_to.empty() && last.handed_to == directory_->address() ? Lead(/*handed_over=*/true)
                                                                              : absl::OkStatus();
  }
  const auto asks = [this](bool begins) {
    const core::MutexLock lock(mutex_);
    waiting_.asks = begins;
  };
  asks(true);
  const auto elsewhere =
      LeaderElsewhere(options_.state_dir, address_, options_.leader, *options_.others, /*again=*/true);
  if (elsewhere.ok() && !*elsewhere && !Stopping()) {
    spdlog::info("no other coordinator of the run leads: leads again");
    return Lead(/*handed_over=*/true);
  }
  asks(false);
  const core::MutexLock lock(mutex_);
  if (elsewhere.ok() && *elsewhere) waiting_.Follow(**elsewhere);
  return elsewhere.status();
}

// The leader, or the one of its other standbys that leads in its place.
core::Address Standby::Target() const {
  std::vector<std::string> names = last_.coordinators;
  core::Address target;
  {
    const core::MutexLock lock(mutex_);
    names.insert(names.end(), copied_.run.standbys().begin(), copied_.run.standbys().end());
    target = waiting_.target.value_or(options_.leader);
  }
  std::vector<core::Address> addresses = {target};
  const absl::StatusOr<std::vector<core::Address>> others = Others(names, directory_->address());
  for (const core::Address& other : others.ok() ? *others : std::vector<core::Address>()) {
    if (other.Text() != address_ && other.Text() != target.Text()) addresses.push_back(other);
  }
  if (addresses.size() == 1) return target;
  const absl::StatusOr<transport::Asked> asked = options_.others->Ask(addresses);
  return asked.ok() && asked->leader && !IsOlder(asked->epoch, epoch()) ? *asked->leader : target;
}

absl::Status Standby::CopyOnce() {
  v1::ReplicateMessage message;
  v1::Context& context = *message.mutable_context();
  context.set_protocol(transport::kProtocol);
  context.set_run_id(options_.run_id);
  context.set_shard(options_.shard.index);
  context.set_num_shards(options_.shard.count);
  message.set_address(address_);
  message.set_formerly(directory_->address());
  message.set_software_version(transport::kVersion);
  ASSIGN_OR_RETURN(const std::vector<MirrorFile> files, directory_->Files());
  for (const MirrorFile& file : files) {
    v1::MirrorFile& each = *message.add_files();
    each.set_name(file.name);
    each.set_bytes(file.bytes);
    each.set_digest(file.digest);
  }
  const core::Address leader = Target();
  grpc::ClientContext call;
  ASSIGN_OR_RETURN(const std::unique_ptr<ReplicateCall> stream, options_.others->Replicate(leader, call));
  absl::Status status;
  {
    const core::MutexLock lock(mutex_);
    if (stopping_) options_.others->Cancel(call);
    context_ = &call;
  }
  if (stream->Write(message)) {
    v1::ReplicateReply reply;
    std::optional<std::string> unfit;
    while (status.ok() && stream->Read(&reply)) {
      v1::ReplicateMessage answer;
      status = Receive(reply, answer, unfit);
      if (!status.ok()) break;
      {
        const core::MutexLock lock(mutex_);
        answer.set_wants_to_lead(std::exchange(copied_.wants_to_lead, false));
      }
      // A stream that is over says so at the next Read.
      if (answer.mirrored() > 0 || answer.wants_to_lead()) stream->Write(answer);
    }
  }
  if (!status.ok()) options_.others->Cancel(call);
  const grpc::Status ended = stream->Finish();
  const core::MutexLock lock(mutex_);
  context_ = nullptr;
  copied_.heard_ms = -kHeardMs;
  if (!status.ok()) return status;
  return absl::Status(ended.ok() ? absl::StatusCode::kUnavailable : static_cast<absl::StatusCode>(ended.error_code()),
                      ended.ok() ? "it ended the stream" : ended.error_message());
}

absl::Status Standby::Receive(const v1::ReplicateReply& reply, v1::ReplicateMessage& answer,
                              std::optional<std::string>& unfit) {
  if (reply.has_begin()) {
    const v1::ReplicateBegin& begin = reply.begin();
    if (IsOlder(begin.run().epoch(), epoch()) || IsAnother(begin.run().lineage(), begin.run().epoch(), last_)) {
      return absl::UnavailableError(absl::StrCat(
          "it leads in epoch ", begin.run().epoch(), " of lineage ", begin.run().lineage(),
          ", with another state than ", options_.state_dir, ", of epoch ", epoch(), " of lineage ", last_.lineage,
          ". Stop the one that is wrong; to follow it all the same, move this directory away"));
    }
    if (begin.set_aside()) {
      RETURN_IF_ERROR(directory_->SetAside());
      spdlog::warn("{}: {}: it was moved to {}/set_aside, and is copied anew", options_.state_dir, begin.reason(),
                   options_.state_dir);
    }
    RETURN_IF_ERROR(directory_->Begin(begin.place(), begin.address()));
    const core::MutexLock lock(mutex_);
    copied_.run = begin.run();
    copied_.bytes = 0;
    copied_.first_bytes = begin.bytes();
    copied_.mirrored = directory_->mark().sequence;
    copied_.heard_ms = clock_.NowMs();
    copied_.wants_to_lead = false;
    return absl::OkStatus();
  }
  if (reply.handed_over()) return Lead(/*handed_over=*/true);
  if (!reply.said().empty()) {
    const core::MutexLock lock(mutex_);
    copied_.refused = reply.said();
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  const MirrorPiece piece = PieceOf(reply);
  const bool is_first = directory_->mark().sequence == 0;
  if (piece.mark.sequence > 0 || !piece.name.empty()) RETURN_IF_ERROR(directory_->Take(piece));
  if (is_first && piece.mark.sequence > 0) spdlog::info("the first copy of {} is whole", options_.leader.Text());
  answer.set_mirrored(piece.mark.sequence);
  if (piece.mark.sequence > 0 && !unfit) {  // a dry start
    unfit = std::string(directory_->CheckStart(options_.start(), piece.mark.sequence, /*handed_over=*/true).message());
    if (!unfit->empty()) spdlog::warn("this standby could not lead: {}", *unfit);
  }
  answer.set_unfit(unfit.value_or(""));
  const core::MutexLock lock(mutex_);
  copied_.mirrored = directory_->mark().sequence;
  copied_.bytes += std::ssize(piece.bytes);
  copied_.heard_ms = clock_.NowMs();
  return absl::OkStatus();
}

absl::Status Standby::Promote(bool leader_is_stopped) {
  uint64_t mark = 0;
  {
    const core::MutexLock lock(mutex_);
    const bool heard = clock_.NowMs() - copied_.heard_ms < kHeardMs;
    const std::string leader = absl::StrCat("the leader at ", options_.leader.Text());
    mark = copied_.mirrored;
    if (stopping_) return absl::FailedPreconditionError("it is being promoted, or stops");
    if (copied_.mirrored == 0 && directory_->is_copy()) {
      return absl::FailedPreconditionError(absl::StrCat(leader, " is not copied yet: ", copied_.bytes, " of ",
                                                        copied_.first_bytes, " bytes are here. Nothing was changed"));
    }
    if (waiting_.OtherStarts(clock_.NowMs()) && !heard) {
      return absl::FailedPreconditionError(
          absl::StrCat(leader, " starts again: try in ", Waiting::kStartsMs / 1000, " s"));
    }
    if (heard && leader_is_stopped) {
      return absl::FailedPreconditionError(absl::StrCat(
          leader, " is heard, so it is not stopped: without --leader_is_stopped it hands over. Nothing was changed"));
    }
    if (!heard && !leader_is_stopped) {
      return absl::FailedPreconditionError(absl::StrCat(leader,
                                                        " is not heard: make sure that it is stopped, and say so "
                                                        "with --leader_is_stopped. Nothing was changed"));
    }
  }
  const absl::Status starts =
      directory_->is_copy() ? directory_->CheckStart(options_.start(), mark, !leader_is_stopped) : absl::OkStatus();
  if (!starts.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this standby could not lead: ", std::string(starts.message()), ". Nothing was changed"));
  }
  if (!leader_is_stopped) return AskToLead();
  RETURN_IF_ERROR(CheckOthers(mark));
  {
    const core::MutexLock lock(mutex_);
    if (waiting_.OtherStarts(clock_.NowMs())) {
      return absl::FailedPreconditionError(
          absl::StrCat("the leader at ", options_.leader.Text(), " starts again meanwhile. Nothing was changed"));
    }
    stopping_ = true;  // from here on a leader that starts gets no answer, and waits
  }
  Stop();
  const absl::Status leads = Lead(/*handed_over=*/false);
  const core::MutexLock lock(mutex_);
  status_ = leads;
  return leads;
}

// The run's other standbys: one of them may lead already, or have more.
absl::Status Standby::CheckOthers(uint64_t mark) const {
  const absl::StatusOr<LastKnown> last = directory_->ReadLastKnown(mark);
  if (!last.ok()) {  // another one leads, and the copy becomes one of it
    return absl::FailedPreconditionError(
        absl::StrCat("the copy changes at this moment (", std::string(last.status().message()), "). Try again"));
  }
  ASSIGN_OR_RETURN(const std::vector<core::Address> others, Others(last->coordinators, address_));
  if (others.empty()) return absl::OkStatus();
  const absl::StatusOr<transport::Asked> asked = options_.others->Ask(others);
  if (!asked.ok()) return absl::OkStatus();  // a person has said that none leads
  if (asked->leader) {
    return absl::FailedPreconditionError(
        absl::StrCat("the standby at ", asked->leader->Text(), " leads already. Nothing was changed"));
  }
  if (!directory_->is_copy() || asked->mark <= mark) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the standby at ", asked->furthest->Text(),
                                                    " has all up to record ", asked->mark, ", this one up to ", mark,
                                                    ": promote that one. Nothing was changed"));
}

absl::Status Standby::AskToLead() {
  core::MutexLock lock(mutex_);
  copied_.refused.clear();
  copied_.wants_to_lead = true;  // with the answer to the next message, of which there is one a second at least
  lock.WaitFor(changed_, kHandOver,
               [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !copied_.refused.empty(); });
  copied_.wants_to_lead = false;
  if (promoted_) return absl::OkStatus();
  const std::string leader = absl::StrCat("the leader at ", options_.leader.Text());
  if (!copied_.refused.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(leader, " does not hand over: ", copied_.refused, ". Nothing was changed"));
  }
  return absl::UnavailableError(absl::StrCat(leader, " has not handed over within 15 s: look at its log"));
}

// Nothing else touches the directory any more.
absl::Status Standby::Lead(bool handed_over) {
  uint64_t seen = 0;
  {
    const core::MutexLock lock(mutex_);
    seen = waiting_.latest();
  }
  RETURN_IF_ERROR(directory_->Promote(handed_over, seen));
  if (directory_->is_copy()) {
    spdlog::warn("leads from record {} on{}", directory_->mark().sequence,
                 handed_over ? ", which is all that its leader had" : "");
  }
  const core::MutexLock lock(mutex_);
  stopping_ = true;
  promoted_ = true;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<v1::RunDescription> Standby::Describe(const v1::DescribeRequest& request) {
  const core::MutexLock lock(mutex_);
  if (stopping_ || (request.starts() && waiting_.asks)) {
    return absl::UnavailableError("this standby is about to lead, or stops");
  }
  if (request.starts()) waiting_.other_ms = clock_.NowMs();
  v1::RunDescription description = copied_.run;
  if (description.run_config().empty()) {
    description.set_run_config(last_.run_config.empty() ? options_.run_config : last_.run_config);
  }
  description.set_protocol(transport::kProtocol);
  description.set_run_id(options_.run_id);
  description.set_shard(options_.shard.index);
  description.set_num_shards(options_.shard.count);
  description.set_standby_of(options_.leader.Text());
  description.set_epoch(std::max(description.epoch(), last_.epoch));
  description.set_mirrored(copied_.mirrored);
  return description;
}

// Sites retry: one that has seen a later epoch says so until it has found that leader.
void Standby::Joins(const v1::Context& context) {
  {
    const core::MutexLock lock(mutex_);
    if (!core::IsValidName(context.site()) || stopping_) return;
    const int64_t now_ms = clock_.NowMs();
    waiting_.SiteLooks(context.site(), context.epoch(), now_ms);
    if (directory_->is_copy() || !waiting_.MayLead(last_.sites, last_.epoch, now_ms)) return;
    if (std::exchange(stopping_, true)) return;
    if (context_ != nullptr) options_.others->Cancel(*context_);
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.Join();
  spdlog::info("all sites of the run look for their leader, and none has seen another one: leads again");
  if (const absl::Status leads = Lead(/*handed_over=*/true); !leads.ok()) {
    const core::MutexLock lock(mutex_);
    status_ = leads;
  }
}

uint64_t Standby::epoch() const {
  const core::MutexLock lock(mutex_);
  return std::max(copied_.run.epoch(), last_.epoch);
}

std::string Standby::Progress() const {
  const core::MutexLock lock(mutex_);
  const bool heard = clock_.NowMs() - copied_.heard_ms < kHeardMs;
  if (!heard) return absl::StrCat("a standby of ", options_.leader.Text(), ", which is not heard: ", copied_.said);
  if (copied_.mirrored == 0) {
    return absl::StrFormat(
        "a standby of %s: its first copy is at %.0f %%", options_.leader.Text(),
        100.0 * static_cast<double>(copied_.bytes) / static_cast<double>(std::max<int64_t>(1, copied_.first_bytes)));
  }
  return absl::StrCat("a standby of ", options_.leader.Text(), ": has all up to record ", copied_.mirrored);
}

std::unique_ptr<CallService> NewStandbyService(Standby* standby, std::function<std::string()> status_json, Gate* gate) {
  const std::string other = absl::StrCat("this is a standby; the leader is at ", standby->options().leader.Text());
  auto service = std::make_unique<CallService>(gate, /*lineage=*/"", absl::UnavailableError(other));
  service->Add<v1::SiteMessage, v1::CoordinatorMessage>(
      "Control",
      [=](const Peer& peer, const v1::SiteMessage& message, v1::CoordinatorMessage& answer) -> absl::Status {
        if (!message.has_join()) return absl::InvalidArgumentError("expected Join");
        RETURN_IF_ERROR(gate->ControlBytes(peer, static_cast<int64_t>(message.ByteSizeLong())));
        RETURN_IF_ERROR(gate->ControlMessage(peer, message.join().context().site(), 0, /*has_manifest=*/true));
        RETURN_IF_ERROR(standby->CheckContext(message.join().context()));
        standby->Joins(message.join().context());
        answer.mutable_refused()->set_reason(other);
        answer.mutable_refused()->set_retry_after_ms(kAskAgainMs);
        return absl::OkStatus();
      },
      core::kMaxControlMessageBytes);
  service->Add<v1::StatusRequest, v1::StatusResponse>(
      "GetStatus", [=](const Peer& peer, const v1::StatusRequest&, v1::StatusResponse& response) {
        const absl::Status status = gate->Question(peer, /*site=*/"");
        if (status.ok()) response.set_json(status_json());
        return status;
      });
  service->Add<v1::DescribeRequest, v1::RunDescription>(
      "Describe", [=](const Peer& peer, const v1::DescribeRequest& request, v1::RunDescription& description) {
        RETURN_IF_ERROR(gate->Question(peer, request.context().site()));
        RETURN_IF_ERROR(standby->CheckContext(request.context()));
        ASSIGN_OR_RETURN(description, standby->Describe(request));
        return absl::OkStatus();
      });
  service->Add<v1::PromoteRequest, v1::PromoteResponse>(
      "Promote", [=](const Peer& peer, const v1::PromoteRequest& request, v1::PromoteResponse& response) {
        RETURN_IF_ERROR(gate->Command(peer, "Promote"));
        RETURN_IF_ERROR(standby->CheckContext(request.context()));
        RETURN_IF_ERROR(standby->Promote(request.leader_is_stopped()));
        response.set_said("promoted");
        return absl::OkStatus();
      });
  service->AnswerAside("Promote");
  service->AnswerAside("Control");
  return service;
}

}  // namespace causeway::server
