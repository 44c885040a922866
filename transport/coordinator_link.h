// A site's side of the wire, as the site sees it: membership events in, payloads out and in. It moves bytes and
// never looks inside a payload; broken connections are its own affair.
//
//   Site ── Upload, Download, Send… ──► CoordinatorLink ══ gRPC ══► coordinator
//       ▲                                          │
//       └────── LinkListener: OnWelcome, OnEntry … ┘
//
// An interface, so that a site also runs against a coordinator in its own process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/bytes.h"
#include "core/data_fingerprint.h"
#include "core/fragment_map.h"
#include "core/membership.h"
#include "core/outer_step.h"

namespace causeway::transport {

using core::Chunks;

struct Standing {
  std::vector<core::Version> versions;  // of the anchors, empty before the site has entered
  std::vector<core::Version> admitted;  // base of the last contribution that is known to be admitted, −1: none; as long
  bool from_checkpoint = false;         // this process repeats steps of its session
  bool joining = false;                 // it has no place yet: what it downloads is of use whatever became of its stay
  core::SiteData data;                  // what the site trains and evaluates on, as far as it says
};

struct Welcome {
  bool resumed = false;         // the session is still in the run
  bool kept_transfers = false;  // what was under way goes on: resumed, or still joining
  // False: the coordinator's state goes on from another one, or has forgotten the site; what it holds is void.
  bool same_lineage = true;
  std::string lineage;  // of the coordinator's state; of several shards, with commas between
  int64_t stay = 0;     // of the site: another one when it has joined anew
  // Number of the model; none: a coordinator of before. Where it is another one than before, no transfer was kept.
  std::optional<uint64_t> generation;
  core::FragmentMap map;
  std::vector<core::Version> last_admitted;  // base of the site's last admitted contribution of each fragment; −1 none
};

// A fragment's anchor and momentum, as the site has them.
struct HeldFragment {
  core::FragmentId fragment = 0;
  core::Version version = 0;
  uint64_t anchor_digest = 0;
  uint64_t momentum_digest = 0;
};

// W and then v of a fragment, float32 in padded layout, in pieces of at most 1 MiB.
struct HeldValues {
  core::Version version = 0;
  Chunks pieces;  // nullptr: the site does not hold it
};

// Called on the link's threads, one call at a time; must not block for long.
class LinkListener {
 public:
  virtual ~LinkListener() = default;

  // What the site holds: sent when (re)joining.
  virtual Standing GetStanding() = 0;

  // Joined. Not resumed: what was under way was dropped, and the site needs a new place.
  virtual void OnWelcome(const Welcome& welcome) = 0;
  virtual void OnSeedRequest() = 0;  // upload the initial parameters
  virtual void OnEntry(const core::Entry& entry) = 0;
  virtual void OnNotice(const std::string& reason) = 0;  // why nothing happens at the moment
  virtual void OnDrain(const std::string& reason) = 0;   // finish what is in flight and leave
  virtual void OnHold(bool held) = 0;                    // the run is paused, or goes on

  // The coordinator has lost its state and rebuilds it from the sites'. Each answers once, on any thread: all fragments
  // that the site holds, none if it has not entered; and the values of one.
  virtual void OnHoldingsWanted(std::function<void(const std::vector<HeldFragment>&)> show) { show({}); }
  virtual void OnFragmentWanted(core::FragmentId /*fragment*/, std::function<void(HeldValues)> send) { send({}); }

  // The end of the link: PERMISSION_DENIED when the coordinator refused the site, UNAVAILABLE when it was not reached
  // within the time allowed.
  virtual void OnFailure(const absl::Status& status) = 0;
};

// A fragment's payload to send. The chunks stay as they are until `done`.
struct UploadRequest {
  bool initial = false;  // the initial parameters instead of a contribution
  int64_t stay = 0;      // of a contribution: that it was made in. 0: the link's
  core::FragmentId fragment = 0;
  core::Version base = 0;
  int64_t tokens = 0;
  int64_t steps = 0;
  Chunks chunks;
  // OK: admitted. FAILED_PRECONDITION: refused. DATA_LOSS: the chunks are not what the coordinator can take.
  // CANCELLED: dropped.
  std::function<void(absl::Status verdict)> done;
};

struct DownloadHeader {
  core::Version version = 0;  // that the site has when it is through
  core::OuterParameters outer;
  std::vector<core::SiteId> merged;         // in bytewise order
  std::vector<core::Version> merged_bases;  // of each of them: its contribution's base
  std::vector<double> merged_weights;       // of each of them, of a sum of 1; empty if the coordinator did not say
  std::vector<core::SiteId> sites;          // that share the data from here on
  int num_chunks = 0;
  bool already_held = false;  // anchors: the digest that was offered is the right one; no chunk follows
  // Numbers of codecs (core/codec_id.h), where the coordinator chooses them; 0: as the config says.
  uint32_t codec = 0;                  // of an update's chunks
  uint32_t up_codec = 0;               // of contributions to `version`
  std::optional<uint64_t> generation;  // of the model, as the coordinator has it
};

enum class DownloadKind { kUpdate, kAnchor };

// A payload to fetch: on_header first (again, with everything starting over, if the coordinator could not go on where
// the connection broke), then each chunk once, with its index, in any order. One call at a time.
struct DownloadRequest {
  DownloadKind kind = DownloadKind::kUpdate;
  core::FragmentId fragment = 0;
  core::Version version = 0;  // of the base of an update; the least version of an anchor
  uint64_t held_digest = 0;   // anchors: of the initial parameters as the site would make them; 0 = none
  // The most that the payload may have: a header that says more is refused before anything is allocated for it. Few
  // chunks take few connections.
  size_t num_chunks = 1;
  std::function<void(const DownloadHeader&)> on_header;
  std::function<void(int index, std::string chunk)> on_chunk;
  // OK: all chunks have come. NOT_FOUND: the coordinator has it no more. INVALID_ARGUMENT: it is not what can be sent,
  // or what can be taken. CANCELLED: dropped.
  std::function<void(absl::Status status, uint64_t digest)> done;
};

class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;

  // Joins as soon as possible and stays joined. Call once; the listener outlives Leave.
  virtual void Start(const core::Manifest& manifest, LinkListener* listener) = 0;

  virtual void SendReady() = 0;
  virtual bool SendProgress(const core::Progress& progress) = 0;  // false: not connected
  virtual core::LinkProgress Measured() const = 0;                // of the link so far

  // Start transfers; they survive broken connections. `done` is called exactly once, and may be before the call
  // returns. Who asks again for an anchor, or sends a fragment's initial parameters again, takes the place of the
  // earlier transfer: that one ends with CANCELLED.
  virtual void Upload(UploadRequest request) = 0;
  virtual void Download(DownloadRequest request) = 0;

  // Joins again, on a new control stream: the site has lost what its place stood on, and its standing says so.
  virtual void Rejoin() = 0;

  // Leaves the run and ends: no call to the listener after it. Drops transfers. That all steps are done is said until
  // the coordinator has heard it, for a while; otherwise its run would wait for this site.
  virtual void Leave(bool finished, const std::string& reason) = 0;

  // From here on Leave waits for nobody to hear it, also one that is under way. Any thread.
  virtual void Hurry() = 0;
};

}  // namespace causeway::transport
