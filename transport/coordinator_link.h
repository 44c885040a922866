// The site's interface to the wire: membership events in, payloads out and in. It moves bytes, never looks inside a
// payload, and repairs broken connections itself.
//
//   Site ── Upload, Download, Send… ──► CoordinatorLink ══ gRPC ══► coordinator
//       ▲                                          │
//       └────── LinkListener: OnWelcome, OnEntry … ┘
//
// An interface, so that a site can also run against a coordinator in its own process.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/buffer_pool.h"
#include "core/data_fingerprint.h"
#include "core/fragment_map.h"
#include "core/fragment_state.h"
#include "core/membership.h"
#include "core/outer_step.h"
#include "core/progress.h"
#include "core/run_settings.h"

namespace causeway::transport {

using core::Chunks;

struct Standing {
  std::vector<core::Version> versions;  // versions of the anchors; empty before the site has entered
  std::vector<core::Version> admitted;  // by fragment: base of the last contribution known to be admitted; −1: none
  bool from_checkpoint = false;         // this process repeats steps of its session
  bool joining = false;  // the site has no place yet: its downloads stay useful whatever happens to its stay
  core::SiteData data;   // the data that the site declares
};

struct Welcome {
  bool resumed = false;         // the session is still in the run
  bool kept_transfers = false;  // transfers in progress continue: resumed, or still joining
  // False: the coordinator's state continues another one, or has forgotten the site; the site's state is void.
  bool same_lineage = true;
  std::string lineage;  // lineage of the coordinator's state; for several shards, separated by commas
  int64_t stay = 0;     // the site's stay: a new number if it has joined anew
  // Number of the model; none: an older coordinator. If it has changed, no transfer was kept.
  std::optional<uint64_t> generation;
  core::FragmentMap map;
  std::vector<core::Version> last_admitted;  // by fragment: base of the site's last admitted contribution; −1: none
  core::SettingsChain settings;              // the newest revisions of the run's settings
};

// The state that a site shows to a coordinator that rebuilds its own.
struct HeldState {
  std::vector<core::HeldFragment> fragments;
  core::SettingsChain settings;
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

  // The site's standing, sent when (re)joining.
  virtual Standing GetStanding() = 0;

  // Joined. Not resumed: transfers in progress were dropped, and the site needs a new place.
  virtual void OnWelcome(const Welcome& welcome) = 0;
  virtual void OnSeedRequest() = 0;  // upload the initial parameters
  virtual void OnEntry(const core::Entry& entry) = 0;
  virtual void OnNotice(const std::string& reason) = 0;  // why nothing happens at the moment
  virtual void OnDrain(const std::string& reason) = 0;   // finish what is in flight and leave
  virtual void OnHold(bool held) = 0;                    // the run is paused, or continues

  // The coordinator has lost its state and rebuilds it from the sites'. Each call is answered once, on any thread: the
  // first with all fragments that the site holds (none if it has not entered), the second with the values of one.
  virtual void OnHoldingsWanted(std::function<void(const HeldState&)> show) { show({}); }
  virtual void OnFragmentWanted(core::FragmentId /*fragment*/, std::function<void(HeldValues)> send) { send({}); }

  // The end of the link: PERMISSION_DENIED if the coordinator refused the site, UNAVAILABLE if it was not reached
  // within the time allowed.
  virtual void OnFailure(const absl::Status& status) = 0;
};

// A fragment's payload to send. REQUIRES: the chunks do not change until `done`.
struct UploadRequest {
  bool initial = false;  // the initial parameters instead of a contribution
  int64_t stay = 0;      // for a contribution: the stay in which it was made. 0: the link's
  core::FragmentId fragment = 0;
  core::Version base = 0;
  int64_t tokens = 0;
  int64_t steps = 0;
  Chunks chunks;
  // OK: admitted. FAILED_PRECONDITION: refused. DATA_LOSS: the coordinator cannot accept the chunks. CANCELLED:
  // dropped.
  std::function<void(absl::Status verdict)> done;
};

struct DownloadHeader {
  core::Version version = 0;  // version that the site has after the download
  core::OuterParameters outer;
  std::vector<core::SiteId> merged;         // contributors to the update, in bytewise order
  std::vector<core::Version> merged_bases;  // for each contributor: its contribution's base
  std::vector<double> merged_weights;       // for each contributor, summing to 1; empty if the coordinator sent none
  std::vector<core::SiteId> sites;          // the sites that share the data from here on
  int num_chunks = 0;
  bool already_held = false;  // anchors: the offered digest matches; no chunk follows
  // Codec numbers (core/codec_id.h), where the coordinator chooses them; 0: as the config says.
  uint32_t codec = 0;                  // codec of an update's chunks
  uint32_t up_codec = 0;               // codec of contributions to `version`
  int64_t run_tokens = 0;              // tokens of all sites' contributions to the fragment merged until `version`
  std::optional<uint64_t> generation;  // generation of the coordinator's model
  std::vector<core::SettingsRevision> revisions;  // revisions of the run's settings after DownloadRequest.revision
};

enum class DownloadKind { kUpdate, kAnchor };

// A payload to fetch: on_header is called first (and again, starting over, if the coordinator could not continue where
// the connection broke), then on_chunk once for each chunk, with its index, in any order. One call at a time.
struct DownloadRequest {
  DownloadKind kind = DownloadKind::kUpdate;
  core::FragmentId fragment = 0;
  core::Version version = 0;  // the base of an update, or the minimum version of an anchor
  uint64_t held_digest = 0;   // anchors: digest of the initial parameters that the site would make; 0 = none
  // The most chunks that the payload may have: a header with more is refused before anything is allocated for it. Few
  // chunks take few connections.
  size_t num_chunks = 1;
  int64_t revision = 0;  // newest revision of the settings that the site knows
  std::function<void(const DownloadHeader&)> on_header;
  std::function<void(int index, std::string chunk)> on_chunk;
  // OK: all chunks have arrived. NOT_FOUND: the coordinator no longer has the payload. INVALID_ARGUMENT: it cannot be
  // sent, or cannot be accepted. CANCELLED: dropped.
  std::function<void(absl::Status status, uint64_t digest)> done;
};

class CoordinatorLink {
 public:
  virtual ~CoordinatorLink() = default;

  // Joins as soon as possible and stays joined. Call once; the listener outlives Leave.
  virtual void Start(const core::Manifest& manifest, LinkListener* listener) = 0;

  virtual void SendReady() = 0;
  virtual bool SendProgress(const core::Progress& progress) = 0;  // false: not connected
  virtual core::LinkProgress Measured() const = 0;                // measurements of the link so far

  // Start transfers, which survive broken connections. `done` is called exactly once, possibly before the call returns.
  // A second request for an anchor, or a second upload of a fragment's initial parameters, replaces the earlier
  // transfer, which ends with CANCELLED.
  virtual void Upload(UploadRequest request) = 0;
  virtual void Download(DownloadRequest request) = 0;

  // Joins again, on a new control stream: the site has lost the basis of its place, as its standing shows.
  virtual void Rejoin() = 0;

  // Leaves the run and ends: the listener is not called afterwards. Drops transfers. For a while it repeats that all
  // steps are done until the coordinator has received it; otherwise the run would wait for this site.
  virtual void Leave(bool finished, const std::string& reason) = 0;

  // From here on Leave does not wait for the coordinator to receive it; this also applies to a Leave in progress. Any
  // thread.
  virtual void Hurry() = 0;
};

// A program's view of its link, beyond the site's: it can ask for the run's description, and continue the session of an
// earlier process. ShardLink adds the calls for one of several links, each to another shard of the run.

// The facts that a site needs before it can join.
struct RunDescription {
  core::RunId run_id;
  std::string run_config;  // serialized; formats::ParseRunConfig reads it
  std::string http;        // HOST:PORT where the status page listens; empty: unknown
};

// Facts about the coordinator that a process keeps with its checkpoint; for several shards, each text has those of all
// shards, separated by commas.
struct Remembered {
  std::string lineage;  // lineage of its state, as last seen; "": none
  std::string proofs;   // proofs of its statements (transport/shown_proofs.h)
};

class SessionLink : public CoordinatorLink {
 public:
  // Before Start: continues the session of an earlier process.
  virtual void Resume(const core::SessionId& session, const Remembered& of_coordinator) = 0;
  virtual Remembered remembered() const = 0;
  virtual const core::SessionId& session() const = 0;

  // Asks for the run's description, retrying as long as necessary. UNAVAILABLE after connect_timeout_s, CANCELLED once
  // `cancelled` returns true, PERMISSION_DENIED if the peer is not a coordinator that we understand, or is another
  // shard.
  virtual absl::StatusOr<RunDescription> Describe(const std::function<bool()>& cancelled) = 0;
};

class ShardLink : public SessionLink {
 public:
  // From now on joins as of this stay, which shard 0 assigned; if the link was started, at once, on a new control
  // stream.
  virtual void JoinAs(int64_t stay) = 0;

  virtual void DropTransfers() = 0;  // all of them end with CANCELLED
};

}  // namespace causeway::transport
