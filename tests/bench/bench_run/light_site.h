// A site that holds no parameters: it joins, sends and receives what a site would, over the real wire, and throws away
// what it gets. So one small machine plays many large sites.
//
//   OnEntry, update of base v is here ─► Advance: upload to base v + 1, as far as Allow lets it ─► verdict
//                                               download the update of base v + 1 ─► thrown away ─┘
//
// Synchronous mode. Fragments are independent and go as fast as the coordinator; at most `in_flight` uploads at a time,
// lowest base first. A breach of the protocol ends the program with a message. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "core/run_config.h"
#include "tests/bench/bench_run/light_payloads.h"
#include "tests/bench/bench_run/wire.h"
#include "transport/coordinator_link.h"

namespace causeway::bench {

// Shared by the sites of one process.
struct LightRun : DescribedRun {
  std::vector<Chunks> contributions;      // of each fragment
  std::vector<uint64_t> initial_digests;  // offered, so that no site downloads what it could make; 0: none
  core::Version rounds = 0;               // of each fragment
  int in_flight = 0;
};

class LightSite final : public IdleListener {
 public:
  // The link has been asked to Describe.
  LightSite(std::shared_ptr<const LightRun> run, std::unique_ptr<transport::SessionLink> link);

  void Start();
  void Allow(core::Version bases);    // sends contributions to bases below it alone
  void WaitEntered();                 // it has its place
  void WaitAdmitted(int64_t count);   // verdicts ever
  void WaitHolds(core::Version all);  // of each fragment at least that version
  void ReportProgress();              // keeps its lease
  void Leave();

  int64_t received_bytes() const { return received_bytes_; }

  transport::Standing GetStanding() override;
  void OnWelcome(const transport::Welcome& welcome) override;
  void OnSeedRequest() override;
  void OnEntry(const core::Entry& entry) override;

 private:
  struct Slot {
    core::Version version = -1;  // of its anchor, whose values it does not keep
    core::Version next = 0;      // base of the next contribution
    bool sending = false;
  };

  void GetAnchor(core::FragmentId p);
  void GetUpdate(core::FragmentId p, core::Version base);
  void Advance();
  void Send(core::FragmentId p, core::Version base);
  void Hold(core::FragmentId p, core::Version version);

  const std::shared_ptr<const LightRun> run_;
  const std::unique_ptr<transport::SessionLink> link_;
  std::atomic<int64_t> received_bytes_ = 0;

  core::Mutex mutex_;
  core::Condition changed_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool entered_ ABSL_GUARDED_BY(mutex_) = false;
  core::Version allowed_ ABSL_GUARDED_BY(mutex_) = 0;
  int sending_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t admitted_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway::bench
