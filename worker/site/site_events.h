// Events that reach a site, and the actions with which its rules respond: plain values.
//
//   step loop, link, movers, time ── SiteEvent ──► SiteRules::Handle ── SiteAction ──► movers, link, step thread
//
// The result of a transfer carries the stay, the fragment and the ticket of its request, so that the rules drop in one
// place whatever an earlier stay, or an earlier request, left behind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "core/membership.h"
#include "core/schedule.h"
#include "worker/site/site_checkpoint.h"

namespace causeway::worker {

// Converts an event's time, or the difference of two, to seconds.
inline double Seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

// Identifies a request.
struct Tag {
  int64_t stay = 0;
  core::FragmentId fragment = 0;
  int64_t ticket = 0;  // numbers the fragment's transfers, rising

  friend bool operator==(const Tag&, const Tag&) = default;
};

namespace event {

// ---- The link ----

struct Welcomed {
  bool resumed = false;         // the session is still in the run
  bool kept_transfers = false;  // transfers in progress continue; false: another lineage, model or stay
  bool same_lineage = true;     // false: the site's state is void
  std::string lineage;          // the lineage of the coordinator's state
  int64_t stay = 0;             // the stay's number, by the coordinator's count
  int num_fragments = 0;
  std::vector<core::Version> last_admitted;  // base, for each fragment; −1: none
};
struct SeedRequested {};
struct EntryGiven {
  core::Entry entry;
};
struct Held {
  bool held = false;  // by an operator: the site takes no further step
};
struct VerdictGiven {
  Tag tag;
  absl::Status verdict;
};
struct FetchBegan {  // a download's first bytes have arrived
  Tag tag;
};
// A download is complete, or has failed.
struct Fetched {
  Tag tag;
  absl::Status status;
  core::Version version = 0;            // the version that the site has with it
  std::optional<core::Version> merged;  // updates: base of the contribution of this site that it contains
  std::vector<core::SiteId> sites;      // updates: the sites that share the data from here on
  bool evaluates = false;               // updates: this site evaluates after it
  int64_t begun_us = 0;                 // when its first bytes arrived
  int64_t run_tokens = 0;               // tokens of all sites, merged into the fragment up to `version`
};

// ---- The movers ----

struct Copied {  // the copy of θ for a contribution is complete
  core::FragmentId fragment = 0;
};
struct Encoded {
  core::FragmentId fragment = 0;
};
struct AnchorPlaced {  // W and v are the coordinator's, or are staged if θ is to move with them
  core::FragmentId fragment = 0;
};
struct UpdateTaken {  // W and v have taken the outer step
  core::FragmentId fragment = 0;
  std::string mismatch;  // not empty: the anchor's digest differs from the coordinator's, in words
};
struct Failed {
  absl::Status status;
};

// ---- The step thread ----

struct Joining {};  // the step thread waits to join, and all that an earlier stay began is over
struct Stepped {    // inner step t is done
  core::Step step = 0;
  int64_t tokens = 0;  // trained on in this step
};
struct Offered {  // the site is about to offer its initial values and to request the anchor
  Tag tag;
};
struct Moved {  // θ has moved as the rules wanted
  core::FragmentId fragment = 0;
};
struct TrainingDone {};  // all steps are done; θ no longer moves

// ---- Others ----

struct StopRequested {};
struct Ticked {};  // a few times a second

}  // namespace event

using SiteEvent = std::variant<event::Welcomed, event::SeedRequested, event::EntryGiven, event::Held,
                               event::VerdictGiven, event::FetchBegan, event::Fetched, event::Copied, event::Encoded,
                               event::AnchorPlaced, event::UpdateTaken, event::Failed, event::Joining, event::Stepped,
                               event::Offered, event::Moved, event::TrainingDone, event::StopRequested, event::Ticked>;

namespace action {

// ---- For the step thread ----

struct ReadTheta {  // begins a contribution; answered by Copied
  core::FragmentId fragment = 0;
};
struct MoveTheta {  // answered by Moved
  enum class How {
    kMix,     // the update has our contribution: θ ← α θ + (1 − α) W
    kStep,    // the update lacks it: θ moves as W did, and Δ = W − θ stays whole
    kSet,     // θ ← W
    kAnchor,  // W becomes the staged anchor, and θ moves as far as W does
  };
  core::FragmentId fragment = 0;
  How how = How::kMix;
};
struct OfferInitial {  // W ← θ, then FetchAnchor with its digest: the coordinator may have the same values
  Tag tag;
};
struct UploadInitial {};  // all of θ: the run's initial parameters

// ---- For the task thread ----

struct Encode {  // encodes the outer gradient; answered by Encoded
  core::FragmentId fragment = 0;
};
struct Resolve {  // the unresolved contribution was merged or refused
  core::FragmentId fragment = 0;
  bool merged = false;
};
struct ForgetResidual {
  core::FragmentId fragment = 0;
};
struct PlaceAnchor {  // answered by AnchorPlaced
  core::FragmentId fragment = 0;
  bool stage = false;  // θ moves with the anchor
};
struct TakeUpdate {  // answered by UpdateTaken
  core::FragmentId fragment = 0;
  bool keep_step = false;       // θ is to move by the same step
  std::optional<bool> resolve;  // whether the unresolved contribution is thereby merged or refused
};
struct Evaluate {};  // evaluates the anchors, as they are when its turn comes

// ---- For the link ----

struct Upload {  // answered by VerdictGiven
  Tag tag;
  int64_t stay = 0;  // the stay in which the work was done, by the coordinator's count
  core::Version base = 0;
  TrainedAmount weight;
};
struct FetchAnchor {  // answered by Fetched
  Tag tag;
  core::Version at_least = 0;
};
struct FetchUpdate {  // answered by Fetched
  Tag tag;
  core::Version base = 0;
};
struct SendReady {};
struct Rejoin {};

// Logs a decision and its reason.
struct Say {
  std::string text;
  bool warns = false;  // the site's work was not taken, or is not what the coordinator holds
};

}  // namespace action

using SiteAction = std::variant<action::ReadTheta, action::MoveTheta, action::OfferInitial, action::UploadInitial,
                                action::Encode, action::Resolve, action::ForgetResidual, action::PlaceAnchor,
                                action::TakeUpdate, action::Evaluate, action::Upload, action::FetchAnchor,
                                action::FetchUpdate, action::SendReady, action::Rejoin, action::Say>;
using SiteActions = std::vector<SiteAction>;

}  // namespace causeway::worker
