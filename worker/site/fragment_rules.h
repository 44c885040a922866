// The state of one fragment at a site: two values, one for sending and one for receiving, and the facts that belong to
// them.
//
//   outgoing  None ─due─► Copying ─► Encoding ─► Sending ─verdict─► Admitted ─in an update─► None
//   incoming  Anchoring ─► Placing ─► Awaiting ─complete─► Arrived ─► Taking ─► Taken ─► Moving ─θ moved─► Awaiting
//                             └─► Staged ─θ moved─┘
//
// W has facts().version; θ has the updates up to facts().applied. A refused contribution returns to None: its steps
// stay in Δ = W − θ and the residual. An update stays encoded (Arrived) until its turn comes. A transition outside the
// tables is a bug and ends the process. Pure; one owner at a time.
// Source: docs/architecture.md (arXiv 2501.18512, 2604.21428).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "worker/site/site_checkpoint.h"
#include "worker/site/site_events.h"

namespace causeway::worker {

enum class Outgoing {
  kNone,
  kDue,       // quorum mode: made at the end of a step, once W and θ stand still
  kCopying,   // θ is being copied
  kEncoding,  // the task thread encodes Δ
  kSending,   // encoded; no verdict yet
  kAdmitted,  // the contribution will be merged
};
const char* OutgoingName(Outgoing outgoing);  // "none", …

enum class Incoming {
  kNone,       // W is not an anchor of the run, and nothing was requested
  kAnchoring,  // the anchor was requested
  kPlacing,    // the anchor is being decoded
  kStaged,     // the anchor is decoded, and the step thread moves θ with it
  kAwaiting,   // the next update was requested
  kArrived,    // the update is complete, still encoded
  kTaking,     // the task thread takes the outer step with it
  kTaken,      // W has the update, θ has not
  kMoving,     // the step thread moves θ
};
const char* IncomingName(Incoming incoming);

class FragmentRules {
 public:
  explicit FragmentRules(core::FragmentId id) : id_(id) {}
  FragmentRules(core::FragmentId id, const FragmentFacts& facts);  // restores it from a checkpoint

  core::FragmentId id() const { return id_; }
  Outgoing outgoing() const { return outgoing_; }
  Incoming incoming() const { return incoming_; }
  const FragmentFacts& facts() const { return facts_; }
  bool keeps_local() const { return keeps_local_; }  // θ is W plus the local training
  bool anchored() const;                             // W is an anchor of the run
  bool busy() const;                                 // the copy thread or the task thread uses its arrays
  bool evaluates() const { return arrival_.evaluates; }
  core::FragmentProgress progress() const { return {times_.slack_s, facts_.delay, delay_reason_}; }

  // ---- Sending ----
  void Due() { Go(Outgoing::kDue); }
  bool MayBegin() const;  // W and θ are of one version, and nothing is unresolved
  void Begin(const TrainedAmount& trained, int64_t now_us);
  void Copied() { Go(Outgoing::kEncoding); }
  // Also called again for a contribution from a checkpoint. `welcomed`: the stay by the coordinator's count.
  action::Upload Encoded(int64_t stay, int64_t welcomed);
  action::Upload ToSend(int64_t stay, int64_t welcomed) const;  // the contribution that awaits a verdict
  bool Awaits(const event::VerdictGiven& given, int64_t stay) const;
  void Admitted(int64_t now_us);
  void GiveUp();  // the contribution is refused, void, or not made at all
  void ChooseDelay(core::Step delay, std::string reason);
  // A contribution to this version was made, or the site has none to make.
  bool HadItsTurn() const { return facts_.version < facts_.first || sent_through_ >= facts_.version; }

  // ---- Receiving ----
  Tag AskForAnchor(int64_t stay);
  void Asked(const Tag& tag, int64_t now_us);  // the request is on its way
  void Began(const event::FetchBegan& began);
  bool IsSilent(int64_t now_us) const;  // the anchor was requested a while ago, and nothing came
  action::FetchUpdate AskForUpdate(int64_t stay);
  bool Awaits(const event::Fetched& fetched, int64_t stay) const {
    return fetched.tag == Tag{stay, id_, fetch_ticket_};
  }
  void Arrived(const event::Fetched& fetched);
  action::PlaceAnchor Place();
  void AnchorPlaced();
  // Takes the outer step with the update that arrived; `synchronous`: our contribution can only be in this round.
  action::TakeUpdate Take(bool synchronous, bool moves_theta);
  void Taken(bool wrong);  // `wrong`: W no longer agrees with the run
  action::MoveTheta Move();
  void Moved();       // θ has moved, or stays as it is
  void LoseAnchor();  // W is not an anchor of the run

  // ---- Stays ----
  void Settle(core::Version last_admitted, SiteActions& actions);  // ends an earlier stay; transfers are void
  void Void();                                                     // nothing here belongs to the run's lineage
  void Enter(core::Version first) { facts_.first = first; }
  void EnterFromAnchor(const TrainedAmount& trained, core::Version last_admitted);  // θ is W
  void StopFollowing() { keeps_local_ = false; }                                    // θ does not move with W any more

  // ---- Times ----
  struct Latency {
    double whole_s = 0;   // an update's time, counted from the send
    double waited_s = 0;  // the part of it spent waiting for other sites
  };
  std::optional<Latency> NoteReady(int64_t now_us);  // none: another process sent the contribution
  void NoteNeeded(int64_t now_us, double stall_s);

 private:
  // An update or an anchor on its way in.
  struct Arrival {
    core::Version version = 0;
    std::optional<core::Version> merged;  // base of our contribution that it contains
    std::optional<bool> resolves;         // whether taking it resolves the unresolved contribution
    bool wrong = false;                   // with it, W does not agree with the run
    std::vector<core::SiteId> sites;
    bool evaluates = false;
    int64_t begun_us = 0;
    int64_t run_tokens = 0;
  };
  struct Times {
    std::optional<int64_t> asked_us;  // when the anchor was requested, while nothing has come
    int64_t sent_us = 0;
    int64_t admitted_us = 0;
    int64_t ready_us = 0;
    double slack_s = 0;
  };

  void Go(Outgoing next);
  void Go(Incoming next);

  const core::FragmentId id_;
  Outgoing outgoing_ = Outgoing::kNone;
  Incoming incoming_ = Incoming::kNone;
  FragmentFacts facts_;
  core::Version sent_through_ = -1;
  bool keeps_local_ = false;
  Arrival arrival_;
  std::string delay_reason_;
  Times times_;
  int64_t tickets_ = 0;
  int64_t send_ticket_ = 0, fetch_ticket_ = 0;
};

}  // namespace causeway::worker
