// The journal's input and output, as plain values. Thread-safe while no thread writes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/codec_id.h"
#include "core/data_fingerprint.h"
#include "core/fragment_map.h"
#include "core/ids.h"
#include "core/manifest.h"
#include "core/membership.h"
#include "core/outer_step.h"
#include "core/run_settings.h"

namespace causeway::server {

using ChunkPtr = std::shared_ptr<const std::string>;

struct EvalLoss {
  struct OfSite {
    double loss = 0;
    std::vector<core::Version> versions;

    friend bool operator==(const OfSite&, const OfSite&) = default;
  };

  std::optional<double> start;
  std::optional<double> latest;
  std::vector<core::Version> versions;     // the versions that `latest` evaluated
  std::map<core::SiteId, OfSite> by_site;  // the latest of each site that evaluates on its own data
};

// ---- In ----

// The place of one payload's chunks, back to back in one segment, as stored in rows.
struct Extent {
  int64_t segment = 0;  // 0: none
  int64_t offset = 0;   // of the first chunk, in bytes
  std::vector<uint32_t> chunk_bytes;
  std::vector<uint64_t> chunk_digests;  // XXH3-64 of each

  int64_t bytes() const;
  friend bool operator==(const Extent&, const Extent&) = default;
};

// A contribution that was admitted.
struct ContributionRecord {
  core::FragmentId fragment = 0;
  core::SiteId site;
  core::Admitted admitted;       // base version, tokens, steps
  std::vector<ChunkPtr> chunks;  // in unit order; released as soon as they are written
};

// The codecs of a round, where the coordinator chooses them. The up codec of a version is known since the round before.
struct RoundCodecs {
  core::CodecId up = core::CodecId::kFloat32;       // the round's contributions
  core::CodecId down = core::CodecId::kFloat32;     // the round's update
  core::CodecId next_up = core::CodecId::kFloat32;  // contributions to the version that the round makes

  friend bool operator==(const RoundCodecs&, const RoundCodecs&) = default;
};

// The decision to merge: everything that a replay needs besides the contributions.
struct RoundRecord {
  struct Contributor {
    core::SiteId site;
    core::Version base = 0;  // its contribution's base, at most the round's
    float weight = 0;        // λ, normalised
    float factor = 1;        // its values are scaled by this
    friend bool operator==(const Contributor&, const Contributor&) = default;
  };
  core::FragmentId fragment = 0;
  core::Version base = 0;                 // makes version base + 1
  std::vector<Contributor> contributors;  // in bytewise order of site
  core::OuterParameters outer;
  std::vector<core::SiteId> sites;  // the sites that share the data from here on
  std::string reason;
  std::optional<RoundCodecs> codecs;  // none: as the run's config says
  int64_t run_tokens = 0;             // tokens of all contributions merged into the fragment, this round's, too
  int64_t revision = 0;               // the settings' revision that decided it; 0: those that the run began with
  // If set, the round merged nothing: its version has the parameters of this older one, which has a snapshot.
  std::optional<core::Version> rolled_back_to;

  friend bool operator==(const RoundRecord&, const RoundRecord&) = default;
};

// Facts about a fragment's version, besides its parameters.
struct VersionFacts {
  std::optional<core::CodecId> up;  // the codec of contributions to it; nullopt: as the run's config says
  int64_t run_tokens = 0;           // tokens of all contributions merged up to it

  friend bool operator==(const VersionFacts&, const VersionFacts&) = default;
};
VersionFacts FactsOf(const RoundRecord& round);  // facts of the version that the round makes

// A merged round: its digest, and the update as sites receive it. A digest that differs from an earlier life's is
// DATA_LOSS; an update that an earlier life stored is not stored again.
struct MergedRecord {
  core::FragmentId fragment = 0;
  core::Version base = 0;
  uint64_t digest = 0;                        // the digest of the anchor at base + 1
  std::vector<ChunkPtr> update;               // released as soon as it is written
  std::function<void(const Extent&)> stored;  // called before `durable`: where the update can be read from now on
};

// One line of the event log, for `causewayctl history`.
struct Event {
  int64_t id = 0;       // given by the journal, rising
  int64_t unix_ms = 0;  // given by the journal
  // "start", "model", "withdrawn", "seed", "join", "enter", "drain", "drop", "round", "run", "pause", …
  std::string kind;
  core::SiteId site;               // empty: none
  core::FragmentId fragment = -1;  // −1: none
  std::string text;
};

// The parts of a run that are decided once, written with its seed.
struct RunRecord {
  core::Manifest manifest;
  std::vector<std::vector<core::TensorPart>> tensors_of_fragment;

  friend bool operator==(const RunRecord&, const RunRecord&) = default;
};

RunRecord RunRecordOf(const core::FragmentMap& map);

// The model that the run has or will have, once a first site has declared it; the newest is kept.
struct ModelRecord {
  uint64_t generation = 0;  // 0: none
  RunRecord run;
  core::SiteId seeder;  // the initial parameters were requested from it; empty: from no site

  friend bool operator==(const ModelRecord&, const ModelRecord&) = default;
};

// Changes that become durable together. Rows are written in this order, so that one entry may admit, decide and merge.
struct JournalEntry {
  std::vector<ContributionRecord> admitted;
  std::vector<RoundRecord> decided;
  std::vector<MergedRecord> merged;
  std::optional<core::RoundState> state;  // its sites and flags; versions and contributions follow from the rows above
  std::optional<ModelRecord> model;
  std::optional<EvalLoss> eval_loss;
  std::optional<core::DataOfSites> data;
  core::SettingsChain settings;  // new revisions; on the disk before the entry is durable, also if `relaxed`
  std::vector<Event> events;
  std::string handed_to;          // the last entry: the address of the standby that leads from here on; empty: none
  std::string forgotten;          // the address of a standby that does not come back; empty: none
  std::string continues;          // a lineage whose versions this state has taken over; empty: unchanged
  std::function<void()> durable;  // on the journal's thread; may Commit, must not block on the journal
};

// ---- Out ----

struct JournalIdentity {
  uint64_t epoch = 0;  // the epoch of this life
  std::string lineage;
  std::vector<std::string> former_lineages;  // oldest first
  std::string continues;                     // one of them, whose versions equal this one's bit by bit; empty: none
  std::string secret;                        // shared by copies of this directory; proves what they have told sites
  // The life before was killed, or its machine lost power, while it acknowledged what was not yet synced.
  bool may_have_lost_its_end = false;
  // A life that began so, and its versions then: newer ones that earlier lives have told of are not this state's.
  struct Floor {
    uint64_t epoch = 0;
    std::map<core::FragmentId, core::Version> versions;
  };
  std::vector<Floor> floors;          // oldest first
  std::vector<std::string> repaired;  // damage that this life's start has repaired: a sentence each, naming the file
};

struct StoredContribution {
  core::SiteId site;
  core::Admitted admitted;
  Extent extent;
  float weight = 0;  // λ in a decided round
  float factor = 1;  // its scale in a decided round
};

struct StoredRound {
  RoundRecord record;
  std::optional<uint64_t> digest;                 // nullopt: a crash came before the merge
  std::vector<StoredContribution> contributions;  // in bytewise order of site; empty once pruned
  Extent update;                                  // segment 0: not stored, or pruned
};

struct StoredFragment {
  core::Version snapshot = 0;            // version of the newest snapshot
  std::vector<StoredRound> to_replay;    // rounds decided after it, in order
  std::vector<StoredRound> updates;      // rounds up to it whose update is still stored, in order
  VersionFacts facts;                    // facts of the snapshot's version
  std::vector<StoredContribution> open;  // contributions that wait for a decision; in bytewise order of site
};

// Everything but arrays and payloads.
struct StoredRun {
  std::string run_config;        // the previous life's; empty at the first start
  core::SettingsChain settings;  // all changes of run_config
  RunRecord run;                 // empty before the seed
  ModelRecord model;             // together with `run`, unless that is empty
  core::RoundState rounds;       // complete: with versions and contributions
  EvalLoss eval_loss;
  core::DataOfSites data;
  std::vector<StoredFragment> fragments;  // empty before the seed
};

}  // namespace causeway::server
