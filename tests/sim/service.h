// The programs of a simulated run: what server/main.cc and worker/main.cc put together, over simulated networks and
// disks. Each is started again a while after it has ended, as a service manager does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/run_config.h"
#include "server/calls/gate.h"
#include "server/run/run_exchange.h"
#include "server/standby/standby.h"
#include "tests/sim/disk.h"
#include "tests/sim/ledger.h"
#include "tests/sim/machine.h"
#include "tests/sim/network.h"
#include "transport/coordinator_link.h"
#include "worker/site/site.h"

namespace causeway::sim {

// The promise of a coordinator's log on a disk that fails: a start finds all that was acknowledged, or refuses.
//
//   the end of a life ─► what was synced, undamaged ─► acknowledged records ─┐
//   a crash ─► what the next start will find ─► is a loss of them visible? ──┼─► does the first record of the start's
//   a start that goes on ────────────────────────────────────────────────────┘   own file follow the last of them?
//
// The bytes are read by docs/wire_format.md, by none of the store's code. Damage may lose acknowledged records in
// silence in one case alone, which is the honest limit of decision 19:
//
//   - no whole slot of high_water and no frame of a segment names them or a later record, and
//   - the file was cut, so that it ends with a record or within one, as if those behind had never been written; or the
//     very last record has a sector of zeros, all before it is whole, and nothing lies behind, as if a write of it had
//     been under way. A changed bit or a sector of other contents is never such a case, nor are zeros in two records.
//
// A record that only repeats all rows (the first one of a file) may be lost: nothing is acknowledged by it.

class LogPromise {
 public:
  // The end of a life that had begun a file of its own. `promised`: what was synced, as if nothing had been damaged.
  void Ended(const Disk::Contents& promised);
  static uint64_t LastMark(const Disk::Contents& files);  // of high_water
  uint64_t last() const { return acknowledged_.empty() ? 0 : acknowledged_.back().sequence; }
  // Whether acknowledged records are gone from what the next start finds, and nothing tells.
  bool LostWithoutATrace(const Disk::Contents& found) const;
  // A start has gone on from `found`; `said`: that it has made something good. Returns the wrong in it; "": none.
  std::string Started(const Disk::Contents& found, const Disk::Contents& synced, bool said) const;

 private:
  struct Record {
    uint32_t kind = 0;
    uint64_t sequence = 0;
    std::string previous, hash;

    bool repeats() const { return kind == 8; }  // a state
  };

  static std::vector<Record> RecordsOf(std::string_view file);
  bool IsWhole(const Disk::Contents& found) const;
  static uint64_t LastFrame(const Disk::Contents& files);

  std::string name_;  // the file that the acknowledged records were read from
  std::string file_;
  std::vector<Record> acknowledged_;
};

// The same for every site's trainer.
core::InnerConfig InnerOfSimulation();

// One that is started, killed and started again. Its disk goes from life to life.
class Program {
 public:
  Program(Machine* machine, Network* network, Node node, const std::string& disk_folder);
  virtual ~Program() = default;

  const Node& node() const { return node_; }
  Disk& disk() { return disk_; }
  const Disk& disk() const { return disk_; }
  bool running() const { return process_ != nullptr && process_->alive() && !over_; }

  void Start();
  void Kill();                         // and its machine's disk loses what was not synced
  void KillFor(Clock::Duration time);  // and starts it again then
  void StartIn(Clock::Duration time);  // unless it was started meanwhile
  std::function<void(const Node&, const std::string& why)> ended;
  // Runs something on a thread of the program, if it runs.
  void Do(std::function<void()> what);
  void Stall(Clock::Duration time) { machine_.Stall(*process_, time); }

 protected:
  // The program's life, on the first thread of `process`. Why it ended; "": it was to end.
  virtual std::string Main(const std::shared_ptr<Process>& process) = 0;
  virtual void Forget() = 0;  // what was known of a life that is over
  virtual void Crash() {      // of its machine: the disk's
    disk_.Crash();
    disk_.Damage();
  }

  Machine& machine_;
  Network& network_;

 private:
  const Node node_;
  Disk disk_;
  std::shared_ptr<Process> process_;
  bool over_ = false;
  int64_t lives_ = 0;
};

// A shard's coordinators: one, or two of which the second is started as the first one's standby.
struct Coordinators {
  core::Shard shard;
  bool mirrored = false;
  std::set<uint64_t> epochs;  // that lives have had: no two have the same
  int both_led = 0;           // the number of looks, one after the other

  static Node NodeOf(int shard) { return "hub" + std::to_string(shard); }
  static Node StandbyOf(int shard) { return "mirror" + std::to_string(shard); }
  static int ShardOf(const Node& node) { return node.back() - '0'; }
  static std::vector<Node> Nodes(int shard, bool mirrored) {
    return mirrored ? std::vector{NodeOf(shard), StandbyOf(shard)} : std::vector{NodeOf(shard)};
  }
};

class CoordinatorProgram final : public Program {
 public:
  static constexpr const char* kHandedOver = "the run is handed over";

  CoordinatorProgram(Machine* machine, Network* network, const core::RunConfig& config, Coordinators* all, Node node,
                     const std::string& disk_folder);

  // A command of causewayctl, if it leads.
  void Command(std::function<void(server::RunExchange&)> command);
  // causewayctl promote, if it is a standby.
  void Promote(bool leader_is_stopped);

  server::RunExchange* coordinator() const { return coordinator_; }    // nullptr: not while it leads
  bool leads() const { return running() && coordinator_ != nullptr; }  // or has ended within the last tick
  // As a standby it has all of the leader's log that a site has heard of: a promotion loses nothing.
  bool HasAllOf(const CoordinatorProgram& leader) const;
  void NoteHeard() { heard_ = true; }  // a site was welcomed by this life
  // Starts that made damage good, and crashes whose damage no start could see: those are undone.
  int64_t repaired() const { return repaired_; }
  int64_t untraceable() const { return untraceable_; }

 private:
  std::string Main(const std::shared_ptr<Process>& process) override;
  void Forget() override;
  void Crash() override;
  std::string Refused(const absl::Status& status, const Disk::Contents& before) const;
  std::string StandBy(const std::shared_ptr<Process>& process, server::Gate& gate, const server::Elsewhere& leader,
                      server::CoordinatorCalls& calls);
  std::string Lead(const std::shared_ptr<Process>& process, server::Gate& gate, server::CoordinatorCalls& calls);
  server::JournalOptions Options() const;

  const core::RunConfig config_;
  Coordinators& all_;
  const core::Shard shard_ = all_.shard;
  const std::string serialized_;
  server::RunExchange* coordinator_ = nullptr;
  server::Standby* standby_ = nullptr;
  int promotes_ = 0;     // commands that run
  bool heard_ = false;   // a site has heard of what this life has committed
  uint64_t needed_ = 0;  // the last record of its lives that were heard of
  uint64_t epoch_ = 0;   // the last one that served
  LogPromise log_;
  bool began_ = false;  // this life has a file of the log
  int64_t repaired_ = 0;
  int64_t untraceable_ = 0;
};

class SiteProgram final : public Program {
 public:
  // `model`: what its trainer makes, where the run does not say it. It and the ledger outlive the program.
  SiteProgram(Machine* machine, Network* network, core::SiteId site, int shards, bool mirrored,
              const core::SyntheticConfig* model, Ledger* ledger, const std::string& disk_folder);

  const core::SyntheticConfig& used() const { return used_; }  // the model that its last life brought
  void Quit();                                                 // as SIGTERM: it leaves, and is started again

  worker::Site* site() const { return site_; }          // nullptr: not while it trains
  int64_t passed_over() const { return passed_over_; }  // checkpoints that were damaged

 private:
  std::string Main(const std::shared_ptr<Process>& process) override;
  void Forget() override { site_ = nullptr; }
  std::unique_ptr<transport::SessionLink> MakeLink(const std::shared_ptr<Process>& process);

  const int shards_;
  const bool mirrored_;
  const core::SyntheticConfig* const model_;
  core::SyntheticConfig used_;
  Ledger* const ledger_;
  worker::Site* site_ = nullptr;
  int64_t passed_over_ = 0;
};

}  // namespace causeway::sim
