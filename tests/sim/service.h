// The programs of a simulated run: what server/main.cc and worker/main.cc put together, over simulated networks and
// disks. Each is started again a while after it has ended, as a service manager does.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/run_config.h"
#include "server/run/run_exchange.h"
#include "tests/sim/disk.h"
#include "tests/sim/ledger.h"
#include "tests/sim/log_promise.h"
#include "tests/sim/machine.h"
#include "tests/sim/network.h"
#include "transport/coordinator_link.h"
#include "worker/site/site.h"

namespace causeway::sim {

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

class CoordinatorProgram final : public Program {
 public:
  CoordinatorProgram(Machine* machine, Network* network, const core::RunConfig& config, const core::Shard& shard,
                     const std::string& disk_folder);
  static Node NodeOf(int shard) { return "hub" + std::to_string(shard); }

  // A command of causewayctl, if it serves.
  void Command(std::function<void(server::RunExchange&)> command);

  server::RunExchange* coordinator() const { return coordinator_; }  // nullptr: not while it serves
  // Starts that made damage good, and crashes whose damage no start could see: those are undone.
  int64_t repaired() const { return repaired_; }
  int64_t untraceable() const { return untraceable_; }

 private:
  std::string Main(const std::shared_ptr<Process>& process) override;
  void Forget() override;
  void Crash() override;
  std::string Refused(const absl::Status& status, const Disk::Contents& before) const;

  const core::RunConfig config_;
  const core::Shard shard_;
  server::RunExchange* coordinator_ = nullptr;
  uint64_t epoch_ = 0;  // the last one that served
  LogPromise log_;
  bool began_ = false;  // this life has a file of the log
  int64_t repaired_ = 0;
  int64_t untraceable_ = 0;
};

class SiteProgram final : public Program {
 public:
  // `model`: what its trainer makes, where the run does not say it. It and the ledger outlive the program.
  SiteProgram(Machine* machine, Network* network, core::SiteId site, int shards, const core::SyntheticConfig* model,
              Ledger* ledger, const std::string& disk_folder);

  const core::SyntheticConfig& used() const { return used_; }  // the model that its last life brought
  void Quit();                                                 // as SIGTERM: it leaves, and is started again

  worker::Site* site() const { return site_; }          // nullptr: not while it trains
  int64_t passed_over() const { return passed_over_; }  // checkpoints that were damaged

 private:
  std::string Main(const std::shared_ptr<Process>& process) override;
  void Forget() override { site_ = nullptr; }
  std::unique_ptr<transport::SessionLink> MakeLink(const std::shared_ptr<Process>& process);

  const int shards_;
  const core::SyntheticConfig* const model_;
  core::SyntheticConfig used_;
  Ledger* const ledger_;
  worker::Site* site_ = nullptr;
  int64_t passed_over_ = 0;
};

}  // namespace causeway::sim
