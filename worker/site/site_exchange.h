// Connects a site's rules with the parts that carry them out: events come in from all threads, one at a time, and each
// action goes to the thread that it belongs to.
//
//   link, movers, step thread ── Tell(event) ──► SiteRules ── actions ─┬─► Movers: copy and task thread
//                                                                      ├─► link, when the lock is free again
//                                                                      └─► AwaitTurn: the step thread
//
// Holds what belongs neither to the rules nor to the arrays: payloads received, contributions sent, the report.
// Thread-safe, except that AwaitTurn has one caller at a time, the step thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/run_settings.h"
#include "replica/parameter_store.h"
#include "transport/coordinator_link.h"
#include "worker/site/movers.h"
#include "worker/site/site_checkpoint.h"
#include "worker/site/site_report.h"
#include "worker/site/site_rules.h"
#include "worker/site/site_transfers.h"
#include "worker/site/wait_notice.h"

namespace causeway::worker {

class SiteExchange final : public transport::LinkListener, public MoverListener, public TransferListener {
 public:
  using Deadline = core::Clock::TimePoint;

  // All but `site` outlive it.
  SiteExchange(core::RunSettings* settings, const core::SiteId& site, replica::ParameterStore* store,
               transport::CoordinatorLink* link, const core::Clock& clock);

  void SetEvaluate(std::function<void(AnchorCopy)> evaluate) { evaluate_ = std::move(evaluate); }
  void SetData(const core::SiteData& data);
  void Restore(SiteCheckpoint checkpoint);    // before the first welcome
  void HasNoInitialValues(absl::Status why);  // before the first welcome

  void Tell(const SiteEvent& event);
  void TellStepped(core::Step step);  // adds the tokens reported since the previous step
  // Carries out the step thread's actions until the rules reach one of these turns. Errors: the failure of the rules,
  // or DEADLINE_EXCEEDED with nothing lost.
  absl::StatusOr<SiteRules::Turn> AwaitTurn(Deadline deadline, std::initializer_list<SiteRules::Turn> awaited);
  // Waits until `holds` returns true; false on timeout.
  bool Await(std::chrono::nanoseconds timeout, absl::FunctionRef<bool(const SiteRules&)> holds);
  // Calls `read` with the current rules and returns its result.
  template <typename Read>
  auto Ask(Read read) const {
    core::MutexLock lock(mutex_);
    return read(rules_);
  }

  // Calls `save`, on the task thread, with everything that a checkpoint needs; arrays are views. Returns when `save`
  // has; false, without calling it, unless the rules say that the site can be saved.
  bool Checkpoint(const std::function<void(const SiteCheckpoint&)>& save);
  Movers* movers() const;                                 // null before the first welcome
  const core::FragmentMap& map() const { return *map_; }  // after the first welcome

  // Applies `change` to the report, which goes to the coordinator.
  void Report(absl::FunctionRef<void(SiteReport&)> change);
  core::Progress GetProgress();
  ExchangeTotals GetTotals() const;

  // ---- transport::LinkListener ----
  transport::Standing GetStanding() override;
  void OnWelcome(const transport::Welcome& welcome) override;
  void OnSeedRequest() override { Tell(event::SeedRequested{}); }
  void OnEntry(const core::Entry& entry) override { Tell(event::EntryGiven{entry}); }
  void OnNotice(const std::string& reason) override;
  void OnDrain(const std::string& reason) override;
  void OnHold(bool held) override { Tell(event::Held{held}); }
  void OnHoldingsWanted(std::function<void(const transport::HeldState&)> show) override;
  void OnFragmentWanted(core::FragmentId p, std::function<void(transport::HeldValues)> send) override;
  void OnFailure(const absl::Status& status) override { Tell(event::Failed{status}); }

 private:
  // Work that follows from an event, done after the lock is released: the link may call back at once.
  using Effects = std::vector<std::function<void()>>;

  // A fragment's payload that has arrived and is not taken, and its contribution that was sent and is not admitted.
  struct Kept {
    std::shared_ptr<const Payload> arrived;
    Chunks sent;
  };

  void OnCopied(core::FragmentId p) override { Tell(event::Copied{p}); }
  void OnEncoded(core::FragmentId p, Chunks chunks, const std::string& where) override;
  void OnAnchorPlaced(core::FragmentId p, const core::AnchorDigest& anchor) override;
  void OnUpdateTaken(core::FragmentId p, const core::AnchorDigest& anchor, const std::string& mismatch) override;
  void OnMoverFailed(const absl::Status& status) override { Tell(event::Failed{status}); }
  void OnBegan(const event::FetchBegan& began, const std::vector<core::SettingsRevision>& revisions) override;
  void OnFetched(const event::Fetched& fetched, std::shared_ptr<const Payload> payload) override;
  void OnVerdict(const event::VerdictGiven& given) override;
  void OnTransferFailed(const absl::Status& status) override { Tell(event::Failed{status}); }

  void Handle(const SiteEvent& event, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(const SiteAction& action, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Run(const Effects& effects);
  void UploadInitial();
  absl::Status RestoreArrays() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  core::RunSettings* const settings_;
  replica::ParameterStore* const store_;
  transport::CoordinatorLink* const link_;
  const core::Clock& clock_;
  std::function<void(AnchorCopy)> evaluate_;
  std::unique_ptr<core::FragmentMap> map_;  // set by the first welcome, then constant

  mutable core::Mutex mutex_;
  core::Condition changed_;
  SiteRules rules_ ABSL_GUARDED_BY(mutex_);
  Effects step_actions_ ABSL_GUARDED_BY(mutex_);
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mutex_);                  // indexed by fragment
  std::optional<SiteCheckpoint> restored_ ABSL_GUARDED_BY(mutex_);  // until the first welcome
  SiteReport report_ ABSL_GUARDED_BY(mutex_);
  WaitNotice notice_ ABSL_GUARDED_BY(mutex_);

  SiteTransfers transfers_;
  std::unique_ptr<Movers> movers_;  // null before the first welcome; its threads call us
};

}  // namespace causeway::worker
