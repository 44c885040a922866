
#include "tests/sim/service.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/thread.h"
#include "formats/run_yaml.h"
#include "server/calls/reactors.h"
#include "server/run/membership_follower.h"
#include "server/run/run_parts.h"
#include "transport/first_address.h"
#include "transport/grpc_link.h"
#include "transport/messages.h"
#include "transport/sharded_link.h"
#include "worker/loop/site_loop.h"
#include "worker/site/checkpoint_store.h"

namespace causeway::sim {

namespace {

constexpr size_t kHeaderBytes = 64, kHashBytes = 32, kFrameBytes = 64, kSlotBytes = 4096, kMarkBytes = 48;

template <typename Number>
Number NumberAt(std::string_view bytes, size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

bool IsLog(const std::string& name) { return absl::StartsWith(name, "log/") && absl::EndsWith(name, ".log"); }

}  // namespace

// Whole ones, from the first on.
std::vector<LogPromise::Record> LogPromise::RecordsOf(std::string_view file) {
  std::vector<Record> records;
  while (file.size() >= kHeaderBytes + kHashBytes && file.starts_with("CWLR")) {
    const auto bytes = NumberAt<uint64_t>(file, 24);
    if (bytes > file.size() - kHeaderBytes - kHashBytes) break;
    const size_t size = kHeaderBytes + bytes;
    std::string hash(kHashBytes, '\0');
    SHA256(reinterpret_cast<const unsigned char*>(file.data()), size, reinterpret_cast<unsigned char*>(hash.data()));
    if (file.substr(size, kHashBytes) != hash) break;
    records.push_back({.kind = NumberAt<uint32_t>(file, 4),
                       .sequence = NumberAt<uint64_t>(file, 8),
                       .previous = std::string(file.substr(32, kHashBytes)),
                       .hash = std::move(hash)});
    file.remove_prefix(size + kHashBytes);
  }
  return records;
}

uint64_t LogPromise::LastMark(const Disk::Contents& files) {
  uint64_t last = 0;
  const auto marks = files.find("high_water");
  for (const size_t at : {size_t{0}, kSlotBytes}) {
    if (marks == files.end() || marks->second.size() < at + kMarkBytes) continue;
    const std::string_view slot = std::string_view(marks->second).substr(at, kMarkBytes);
    if (NumberAt<uint64_t>(slot, 40) == core::Xxh3(slot.data(), 40)) last = std::max(last, NumberAt<uint64_t>(slot, 0));
  }
  return last;
}

uint64_t LogPromise::LastFrame(const Disk::Contents& files) {
  uint64_t last = 0;
  for (const auto& [name, content] : files) {
    if (!absl::StartsWith(name, "segments/")) continue;
    for (std::string_view rest = content; rest.size() >= kFrameBytes && rest.starts_with("CWSG");) {
      if (NumberAt<uint64_t>(rest, 56) != core::Xxh3(rest.data(), 56)) break;
      last = std::max(last, NumberAt<uint64_t>(rest, 24));
      rest.remove_prefix(std::min<size_t>(rest.size(), kFrameBytes + NumberAt<uint64_t>(rest, 8)));
    }
  }
  return last;
}

void LogPromise::Ended(const Disk::Contents& promised) {
  acknowledged_.clear();
  for (const auto& [name, content] : promised) {  // the last one that has records is the newest
    if (!IsLog(name)) continue;
    std::vector<Record> records = RecordsOf(content);
    if (records.empty()) continue;
    name_ = name;
    file_ = content;
    acknowledged_ = std::move(records);
  }
}

bool LogPromise::LostWithoutATrace(const Disk::Contents& found) const {
  const auto file = found.find(name_);
  if (acknowledged_.empty() || file == found.end()) return false;
  const std::vector<Record> there = RecordsOf(file->second);
  const auto lost = acknowledged_.begin() + static_cast<int64_t>(std::min(there.size(), acknowledged_.size()));
  const auto first = std::find_if(lost, acknowledged_.end(), [](const Record& record) { return !record.repeats(); });
  if (first == acknowledged_.end()) return false;
  if (first->sequence <= std::max(LastMark(found), LastFrame(found))) return false;
  if (file->second.size() < file_.size()) return true;
  const auto [was, is] = std::ranges::mismatch(file_, file->second);
  const auto [last_was, last_is] = std::mismatch(file_.rbegin(), file_.rend(), file->second.rbegin());
  const bool zeros = std::all_of(is, last_is.base(), [](char byte) { return byte == 0; });
  return zeros && std::next(lost) == acknowledged_.end();
}

// Or a later file has all rows.
bool LogPromise::IsWhole(const Disk::Contents& found) const {
  return std::ranges::any_of(found, [&](const auto& file) {
    if (!IsLog(file.first) || file.first < name_) return false;
    const size_t records = RecordsOf(file.second).size();
    return file.first == name_ ? records >= acknowledged_.size() : records > 0;
  });
}

std::string LogPromise::Started(const Disk::Contents& found, const Disk::Contents& synced, bool said) const {
  const auto after = std::find_if(synced.rbegin(), synced.rend(), [](const auto& file) { return IsLog(file.first); });
  const std::vector<Record> own = after == synced.rend() ? std::vector<Record>() : RecordsOf(after->second);
  if (own.empty() || !own.front().repeats()) return "a start has no log of its own";
  if (acknowledged_.empty()) return "";
  const Record& last = acknowledged_.back();
  const uint64_t end = own.front().sequence - 1;
  if (end == last.sequence && own.front().previous != last.hash) {
    return absl::StrCat("a start goes on from another record ", end, " than was acknowledged");
  }
  const bool rolled_back = std::ranges::any_of(
      acknowledged_, [&](const Record& record) { return record.sequence > end && !record.repeats(); });
  if (!rolled_back && !said && !IsWhole(found)) return absl::StrCat(name_, " was made good without a word");
  if (!rolled_back) return "";
  return absl::StrCat("rolled back in silence: the log was acknowledged up to record ", last.sequence,
                      ", and a start goes on from record ", end);
}

namespace {

constexpr auto kTick = milliseconds(20);
constexpr auto kStartAgain = std::chrono::seconds(1);
constexpr auto kHandOver = std::chrono::seconds(10);

}  // namespace

core::InnerConfig InnerOfSimulation() {
  core::InnerConfig inner;
  inner.optimizer = core::InnerOptimizerKind::kSgd;
  inner.schedule = core::InnerSchedule::kConstant;
  inner.lr = 0.01;
  inner.warmup_steps = 0;
  inner.weight_decay = 0;
  inner.clip = 0;
  inner.batch_size = 4;
  return inner;
}

Program::Program(Machine* machine, Network* network, Node node, const std::string& disk_folder)
    : machine_(*machine), network_(*network), node_(std::move(node)), disk_(machine, disk_folder + "/" + node_) {}

void Program::Start() {
  over_ = false;
  ++lives_;
  machine_.Log(absl::StrCat("start ", node_));
  process_ = machine_.Begin(absl::StrCat(node_, "#", lives_), [this, life = lives_] {
    const std::string why = Main(process_);
    over_ = true;
    Forget();
    machine_.Log("end " + node_);  // without the reason, which names files
    if (ended) ended(node_, why);
    network_.Ended(*process_);
    if (why.empty()) return;
    machine_.After(kStartAgain, [this, life] {
      if (over_ && life == lives_) Start();
    });
  });
}

void Program::Kill() {
  machine_.Log("kill " + node_);
  machine_.Kill(*process_);
  Forget();
  network_.Close(node_);
  network_.Ended(*process_);
  Crash();
}

void Program::KillFor(Clock::Duration time) {
  Kill();
  StartIn(time);
}

void Program::StartIn(Clock::Duration time) {
  machine_.After(time, [this, life = lives_] {
    if (life == lives_ && !running()) Start();
  });
}

void Program::Do(std::function<void()> what) {
  if (running()) machine_.Spawn(process_, std::move(what));
}

// ---- The coordinator ----

namespace {

// The reactors that ship.
class CoordinatorServer final : public Server {
 public:
  CoordinatorServer(server::RunExchange* coordinator, server::Gate* gate) : coordinator_(coordinator), gate_(gate) {}

  grpc::Status Describe(const v1::DescribeRequest& request, v1::RunDescription* description) override {
    const absl::Status status = coordinator_->admission().CheckContext(request.context());
    if (status.ok()) *description = coordinator_->Describe();
    return server::ToGrpc(status);
  }
  CallReactor* NewControl() override { return server::NewControlReactor(coordinator_, gate_, {}); }
  CallReactor* NewFollow() override { return server::NewFollowReactor(coordinator_, gate_, {}); }
  CallReactor* NewUpload() override { return server::NewUploadReactor(coordinator_, gate_, {}); }
  CallReactor* NewDownload() override { return server::NewDownloadReactor(coordinator_, gate_, {}); }
  CallReactor* NewReplicate() override { return server::NewReplicateReactor(coordinator_, gate_, {}); }

 private:
  server::RunExchange* const coordinator_;
  server::Gate* const gate_;
};

class StandbyServer final : public Server {
 public:
  StandbyServer(server::CallService* service, server::Standby* standby) : service_(*service), standby_(*standby) {}

  grpc::Status Describe(const v1::DescribeRequest& request, v1::RunDescription* description) override {
    const absl::StatusOr<v1::RunDescription> described = standby_.Describe(request);
    if (described.ok()) *description = *described;
    return server::ToGrpc(described.status());
  }
  CallReactor* NewControl() override { return New("Control"); }
  CallReactor* NewFollow() override { return New("Follow"); }
  CallReactor* NewUpload() override { return New("Upload"); }
  CallReactor* NewDownload() override { return New("Download"); }
  CallReactor* NewReplicate() override { return New("Replicate"); }

 private:
  CallReactor* New(const char* call) { return service_.Begin(server::CallService::Path(call), {}); }

  server::CallService& service_;
  server::Standby& standby_;
};

core::Address AddressOf(const Node& node) { return {.host = node, .port = 1}; }

class CallsOverNetwork final : public server::CoordinatorCalls {
 public:
  CallsOverNetwork(Network& network, std::shared_ptr<Process> process, Node node)
      : network_(network), process_(std::move(process)), node_(std::move(node)) {}

  absl::StatusOr<transport::Asked> Ask(const std::vector<core::Address>& addresses, bool starts) override {
    transport::Asked asked;
    for (const core::Address& address : addresses) {
      v1::DescribeRequest request;
      request.mutable_context()->set_protocol(transport::kProtocol);
      request.set_starts(starts);
      v1::RunDescription run;
      if (network_.Describe(process_, node_, address.host, request, run).ok()) {
        transport::Note(address, run, asked);
      } else {
        asked.silent.push_back(address);
      }
    }
    return asked;
  }
  absl::StatusOr<std::unique_ptr<server::ReplicateCall>> Replicate(const core::Address& leader,
                                                                   grpc::ClientContext& context) override {
    return network_.Replicate(process_, node_, leader.host, cancels_[&context]);
  }
  void Cancel(grpc::ClientContext& context) override { cancels_.at (&context)(); }

 private:
  Network& network_;
  const std::shared_ptr<Process> process_;
  const Node node_;
  std::map<const grpc::ClientContext*, std::function<void()>> cancels_;
};

}  // namespace

CoordinatorProgram::CoordinatorProgram(Machine* machine, Network* network, const core::RunConfig& config,
                                       Coordinators* all, Node node, const std::string& disk_folder)
    : Program(machine, network, std::move(node), disk_folder),
      config_(config),
      all_(*all),
      serialized_(formats::SerializeRunConfig(config)) {}

void CoordinatorProgram::Forget() {
  coordinator_ = nullptr;
  standby_ = nullptr;
  promotes_ = 0;
  if (std::exchange(began_, false)) log_.Ended(disk().promised());
  if (std::exchange(heard_, false)) needed_ = log_.last();
}

void CoordinatorProgram::Crash() {
  Program::Crash();
  if (!log_.LostWithoutATrace(disk().synced())) return;
  ++untraceable_;
  CHECK(disk().Restore(disk().path() + "/log:"));
}

// Why it ends; a start that is refused is to have changed nothing.
std::string CoordinatorProgram::Refused(const absl::Status& status, const Disk::Contents& before) const {
  for (const auto& [name, content] : disk().synced()) {
    const auto was = before.find(name);
    if (absl::StartsWith(name, "journal.sqlite") || (was != before.end() && was->second == content)) continue;
    if (absl::IsDataLoss(status))
      return absl::StrCat("a start that was refused has changed ", name, ": ", status.ToString());
  }
  return status.ToString();
}

server::JournalOptions CoordinatorProgram::Options() const {
  return {.directory = disk().path(),
          .run_config = serialized_,
          .keep = config_.checkpoint.keep,
          .max_update_log_bytes = config_.checkpoint.max_update_log_bytes,
          .min_free_bytes = 0,
          .new_lineage = false,
          .shard = shard_,
          .segment_bytes = 16 << 10,
          .accept = [this](const std::string&, bool) { return serialized_; },
          .failed = nullptr};
}

std::string CoordinatorProgram::Main(const std::shared_ptr<Process>& process) {
  const auto gate = server::Gate::Create({});
  if (!gate.ok()) return gate.status().ToString();
  CallsOverNetwork calls(network_, process, node());
  std::optional<core::Address> standby_of;
  if (node() == Coordinators::StandbyOf(shard_.index)) standby_of = AddressOf(Coordinators::NodeOf(shard_.index));
  const auto leader = server::LeaderElsewhere(disk().path(), AddressOf(node()).Text(), standby_of, calls);
  if (!leader.ok()) return leader.status().ToString();
  if (*leader) {
    if (std::string why = StandBy(process, **gate, **leader, calls); !why.empty()) return why;
  }
  return Lead(process, **gate, calls);
}

// Until it is promoted: then there is no reason to end.
std::string CoordinatorProgram::StandBy(const std::shared_ptr<Process>& process, server::Gate& gate,
                                        const server::Elsewhere& leader, server::CoordinatorCalls& calls) {
  const auto standby = server::Standby::Open({.state_dir = disk().path(),
                                              .leader = leader.address,
                                              .later_leads = leader.is_later,
                                              .others = &calls,
                                              .run_id = config_.run_id,
                                              .run_config = serialized_,
                                              .shard = shard_,
                                              .start = [this] { return Options(); }});
  if (!standby.ok()) return standby.status().ToString();
  log_ = LogPromise();  // its directory becomes a copy
  const auto service = server::NewStandbyService(
      standby->get(), [] { return std::string(); }, &gate);
  network_.Listen(node(),
                  {.process = process, .server = std::make_shared<StandbyServer>(service.get(), standby->get())});
  absl::Status status = (*standby)->Follow(AddressOf(node()).Text(), "", "");
  standby_ = standby->get();
  while (!(*standby)->promoted() && status.ok()) {
    status = (*standby)->status();
    core::SleepUntil(machine_.Now() + kTick);
    gate.Tick();
  }
  standby_ = nullptr;
  network_.Close(node());
  network_.BreakAll(*process);
  while (network_.Serves(*process) || promotes_ > 0) core::SleepUntil(machine_.Now() + kTick);
  return status.ok() ? "" : status.ToString();
}

void CoordinatorProgram::Promote(bool leader_is_stopped) {
  Do([this, leader_is_stopped] {
    if (standby_ == nullptr) return;
    ++promotes_;
    const absl::Status promoted = standby_->Promote(leader_is_stopped);
    --promotes_;
    machine_.Log(absl::StrCat(node(), promoted.ok() ? " is promoted" : " is not promoted"));
  });
}

bool CoordinatorProgram::HasAllOf(const CoordinatorProgram& leader) const {
  const Disk::Contents synced = disk().synced();
  return standby_ != nullptr && synced.contains("standby.json") && LogPromise::LastMark(synced) >= leader.needed_;
}

std::string CoordinatorProgram::Lead(const std::shared_ptr<Process>& process, server::Gate& gate,
                                     server::CoordinatorCalls& calls) {
  const Disk::Contents before = disk().synced();
  const auto journal = server::Journal::Open(Options());
  if (!journal.ok()) return Refused(journal.status(), before);
  const uint64_t epoch = (*journal)->identity().epoch;
  machine_.Log(absl::StrCat(node(), " begins epoch ", epoch));
  if (epoch <= epoch_) return absl::StrCat("epoch ", epoch, " after epoch ", epoch_);
  if (!all_.epochs.insert(epoch).second) return absl::StrCat("two lives have epoch ", epoch);
  const bool repaired = !(*journal)->identity().repaired.empty();
  if (std::string wrong = log_.Started(before, disk().synced(), repaired); !wrong.empty()) return wrong;
  began_ = true;
  repaired_ += repaired;
  absl::StatusOr<server::StoredRun> stored = (*journal)->Load();
  if (!stored.ok()) return stored.status().ToString();
  const auto coordinator = server::RunExchange::Create({.config = config_,
                                                        .run_config = serialized_,
                                                        .config_json = "{}",
                                                        .shard = shard_,
                                                        .lead = Coordinators::NodeOf(0)},
                                                       journal->get(), *std::move(stored));
  if (!coordinator.ok()) return coordinator.status().ToString();
  epoch_ = epoch;
  network_.Listen(node(),
                  {.process = process, .server = std::make_shared<CoordinatorServer>(coordinator->get(), &gate)});
  std::optional<server::MembershipFollower> follower;
  if (!shard_.leads()) {
    server::MembershipFollowerOptions options;
    options.lead = AddressOf(Coordinators::NodeOf(0));
    options.shard = shard_;
    options.run_id = config_.run_id;
    follower.emplace(std::move(options), network_.MakeWire(process, node(), Coordinators::Nodes(0, all_.mirrored)),
                     coordinator->get());
  }
  std::optional<server::LeaderWatch> watch;
  if (all_.mirrored) {
    watch.emplace(**journal, calls, [&](const absl::Status& deposed) { (*coordinator)->Fail(deposed); });
  }
  coordinator_ = coordinator->get();
  while ((*coordinator)->status().ok()) {
    core::SleepUntil(machine_.Now() + kTick);
    (*coordinator)->Tick();
    gate.Tick();
    const std::string deposed =
        (*coordinator)->View([](const server::RunParts& run) { return run.admission.strangers.WhyDeposed(); });
    if (!deposed.empty()) (*coordinator)->Fail(absl::FailedPreconditionError(deposed));
  }
  coordinator_ = nullptr;
  watch.reset();
  follower.reset();
  const auto until = machine_.Now() + kHandOver;
  const bool hands_over = absl::IsAborted((*journal)->status());
  while (hands_over && !(*journal)->mirrors().all().empty() && machine_.Now() < until) {
    core::SleepUntil(machine_.Now() + kTick);
  }
  network_.Close(node());
  network_.BreakAll(*process);
  while (network_.Serves(*process)) core::SleepUntil(machine_.Now() + kTick);
  return hands_over ? kHandedOver : (*coordinator)->status().ToString();
}

void CoordinatorProgram::Command(std::function<void(server::RunExchange&)> command) {
  Do([this, command = std::move(command)] {
    if (coordinator_ != nullptr) command(*coordinator_);
  });
}

// ---- A site ----

SiteProgram::SiteProgram(Machine* machine, Network* network, core::SiteId site, int shards, bool mirrored,
                         const core::SyntheticConfig* model, Ledger* ledger, const std::string& disk_folder)
    : Program(machine, network, std::move(site), disk_folder),
      shards_(shards),
      mirrored_(mirrored),
      model_(model),
      ledger_(ledger) {}

void SiteProgram::Quit() {
  Do([this] {
    if (site_ != nullptr) site_->RequestStop();
  });
}

std::unique_ptr<transport::SessionLink> SiteProgram::MakeLink(const std::shared_ptr<Process>& process) {
  std::vector<std::unique_ptr<transport::ShardLink>> links;
  for (int i = 0; i < shards_; ++i) {
    const Node hub = Coordinators::NodeOf(i);
    links.push_back(std::make_unique<transport::GrpcLink>(
        transport::LinkOptions{
            .coordinator = {hub, 1}, .channel = {}, .site = node(), .shard = {i, shards_}, .channels = 2},
        network_.MakeWire(process, node(), Coordinators::Nodes(i, mirrored_))));
  }
  if (shards_ == 1) return std::move(links.front());
  return std::make_unique<transport::ShardedLink>(std::move(links));
}

std::string SiteProgram::Main(const std::shared_ptr<Process>& process) {
  const auto link = MakeLink(process);
  const auto description = link->Describe([] { return false; });
  if (!description.ok()) return description.status().ToString();
  const auto config = formats::ParseRunConfig(description->run_config);
  if (!config.ok()) return config.status().ToString();
  core::RunConfig training = *config;
  training.model_kind = core::ModelKind::kSynthetic;
  training.synthetic = used_ = *model_;
  training.inner = InnerOfSimulation();
  const auto trainer = worker::MakeTrainer(training, node(), {});
  if (!trainer.ok()) return trainer.status().ToString();
  const auto store = worker::CheckpointStore::Open(disk().path());
  if (!store.ok()) return store.status().ToString();
  auto checkpoint = (*store)->Load(config->run_id, node());
  passed_over_ += std::ssize((*store)->damage());
  if (!checkpoint.ok()) return checkpoint.status().ToString();
  if (*checkpoint) {
    const worker::CheckpointIdentity& earlier = (*checkpoint)->identity;
    link->Resume(earlier.session, {earlier.lineage, earlier.proofs});
  } else if (const core::SessionId session = (*store)->LoadSession(config->run_id, node()); !session.empty()) {
    link->Resume(session, {});
  }
  const absl::Status saved = (*store)->SaveSession({.run = config->run_id, .site = node(), .session = link->session()});
  if (!saved.ok()) return saved.ToString();
  WatchedStore watched(&(*trainer)->store(), [&](const replica::UnitRanges& ranges, std::span<const float> theta) {
    machine_.Alone([&] { ledger_->ReadTheta(process->name(), ranges, theta); });
  });
  worker::Site site(*config, node(), (*trainer)->manifest(), &watched, link.get());
  if (*checkpoint) {
    const absl::Status loaded = (*trainer)->Load((*checkpoint)->trainer_path);
    if (!loaded.ok()) return loaded.ToString();
    site.Restore(std::move((*checkpoint)->site));
  }
  worker::Checkpoints checkpoints(store->get(), node(), *link, *config, nullptr);
  worker::Exports exports({}, (*trainer)->manifest(), nullptr);
  worker::SiteLoop loop(**trainer, site, checkpoints, exports, nullptr);
  site_ = &site;
  const absl::Status status = loop.Run();
  site_ = nullptr;
  if (absl::IsCancelled(status)) {
    loop.SaveCheckpoint();
    site.DrainUploads().IgnoreError();
  }
  site.Leave(status.ok(), status.ok() ? "all steps are done" : std::string(status.message()));
  return status.ToString();
}

}  // namespace causeway::sim
