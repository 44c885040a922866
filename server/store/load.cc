#include "server/store/load.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limits.h"
#include "server/store/rows.h"

namespace causeway::server {
namespace {

using nlohmann::json;

// nlohmann::json throws on a missing key or a wrong type; the exception ends here.
template <typename T, typename Convert>
absl::StatusOr<T> Parse(const Database& database, const std::string& what, const std::string& text, Convert convert) {
  try {
    return convert(json::parse(text));
  } catch (const std::exception& error) {
    return database.Damaged(absl::StrCat(what, ": ", error.what()));
  }
}

template <typename T>
absl::Status ParseList(const Database& database, const std::string& what, const std::string& text,
                       std::vector<T>& list) {
  ASSIGN_OR_RETURN(
      list, Parse<std::vector<T>>(database, what, text, [](const json& value) { return value.get<std::vector<T>>(); }));
  return absl::OkStatus();
}

// The inverse of the functions in rows.cc.
std::vector<std::vector<core::TensorPart>> PartsFromJson(const json& value) {
  std::vector<std::vector<core::TensorPart>> parts_of_fragment;
  for (const json& fragment : value) {
    auto& parts = parts_of_fragment.emplace_back();
    for (const json& part : fragment) {
      if (part.is_array()) {
        parts.push_back({part.at(0), part.at(1), part.at(2)});
      } else {
        parts.push_back({part.get<int>()});
      }
    }
  }
  return parts_of_fragment;
}

core::Manifest ManifestFromJson(const json& value) {
  core::Manifest manifest;
  for (const json& tensor : value) {
    manifest.push_back({.name = tensor.at("name"),
                        .shape = tensor.at("shape"),
                        .kind = static_cast<core::TensorKind>(tensor.at("kind").get<int>()),
                        .layer = tensor.at("layer"),
                        .dtype = static_cast<core::DType>(tensor.value("dtype", 0)),
                        .alias_of = tensor.value("alias_of", ""),
                        .frozen = tensor.value("frozen", false),
                        .values_digest = tensor.value("values_digest", uint64_t{0})});
  }
  return manifest;
}

using LossBySite = std::map<core::SiteId, EvalLoss::OfSite>;

LossBySite LossFromJson(const json& value) {
  LossBySite losses;
  for (const auto& [site, one] : value.items()) {
    losses[site] = {.loss = std::stod(one.at("loss").get<std::string>()), .versions = one.at("versions")};
  }
  return losses;
}

core::DataOfSites DataFromJson(const json& value) {
  const auto fingerprint = [](const json& said, const char* key) -> std::optional<core::DataFingerprint> {
    if (!said.contains(key)) return std::nullopt;
    const std::string digest = said.at(key).at("digest");
    return core::DataFingerprint{.tokens = said.at(key).at("tokens"), .digest = std::stoull(digest, nullptr, 16)};
  };
  core::DataOfSites data;
  for (const auto& [site, said] : value.items()) {
    data[site] = {.training = fingerprint(said, "training"), .held_out = fingerprint(said, "held_out")};
  }
  return data;
}

absl::Status LoadRunRecord(Database& database, const std::string& prefix, RunRecord& run) {
  const std::string manifest_key = prefix + "manifest", tensors_key = prefix + "tensors_of_fragment";
  ASSIGN_OR_RETURN(const std::optional<std::string> manifest, ReadMeta(database, manifest_key));
  if (!manifest) return absl::OkStatus();
  ASSIGN_OR_RETURN(run.manifest, Parse<core::Manifest>(database, manifest_key, *manifest, ManifestFromJson));
  ASSIGN_OR_RETURN(const std::optional<std::string> tensors, ReadMeta(database, tensors_key));
  ASSIGN_OR_RETURN(run.tensors_of_fragment, Parse<std::vector<std::vector<core::TensorPart>>>(
                                                database, tensors_key, tensors.value_or(""), PartsFromJson));
  return absl::OkStatus();
}

absl::Status LoadModel(Database& database, ModelRecord& model) {
  RETURN_IF_ERROR(LoadRunRecord(database, "model_", model.run));
  ASSIGN_OR_RETURN(const std::optional<std::string> seeder, ReadMeta(database, "model_seeder"));
  ASSIGN_OR_RETURN(const std::optional<std::string> generation, ReadMeta(database, "model_generation"));
  if (generation && (!absl::SimpleAtoi(*generation, &model.generation) || model.generation == 0)) {
    return database.Damaged(absl::StrCat("model_generation is ", *generation));
  }
  model.seeder = seeder.value_or("");
  return absl::OkStatus();
}

absl::Status LoadEvalLoss(Database& database, EvalLoss& loss) {
  const auto number = [&](std::string_view key, std::optional<double>& out) -> absl::Status {
    ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadMeta(database, key));
    double value = 0;
    if (!text) return absl::OkStatus();
    if (!absl::SimpleAtod(*text, &value)) return database.Damaged(absl::StrCat(std::string(key), " is ", *text));
    out = value;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(number("eval_loss_start", loss.start));
  RETURN_IF_ERROR(number("eval_loss_latest", loss.latest));
  ASSIGN_OR_RETURN(const std::optional<std::string> by_site, ReadMeta(database, "eval_loss_by_site"));
  ASSIGN_OR_RETURN(loss.by_site,
                   Parse<LossBySite>(database, "eval_loss_by_site", by_site.value_or("{}"), LossFromJson));
  ASSIGN_OR_RETURN(const std::optional<std::string> versions, ReadMeta(database, "eval_loss_versions"));
  return ParseList(database, "eval_loss_versions", versions.value_or("[]"), loss.versions);
}

absl::Status LoadData(Database& database, core::DataOfSites& data) {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadMeta(database, "data_of_sites"));
  ASSIGN_OR_RETURN(data, Parse<core::DataOfSites>(database, "data_of_sites", text.value_or("{}"), DataFromJson));
  return absl::OkStatus();
}

// The value whose name that is.
template <typename T, size_t N>
absl::Status FromName(const Database& database, const char* what, const std::string& name,
                      const std::array<T, N>& values, const char* (*name_of)(T), T& out) {
  const auto found = std::ranges::find(values, name, name_of);
  if (found == values.end()) return database.Damaged(absl::StrCat("a site has the ", what, " ", name));
  out = *found;
  return absl::OkStatus();
}

absl::Status LoadRules(Database& database, core::RoundState& rules) {
  const auto flag = [&](std::string_view key, bool& out) -> absl::Status {
    ASSIGN_OR_RETURN(const std::optional<std::string> value, ReadMeta(database, key));
    out = value.value_or("0") == "1";
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(flag("started", rules.started));
  RETURN_IF_ERROR(flag("finished", rules.finished));
  RETURN_IF_ERROR(flag("paused", rules.paused));
  RETURN_IF_ERROR(flag("stopped", rules.stopped));
  return database.Query(
      "SELECT site, session, state, reason, first_versions, last_merged, stay, refusals, quarantined, starts_anew, "
      "releases, ended FROM sites",
      {}, [&](const SqlRow& row) -> absl::Status {
        const std::string site = row.Text(0);
        core::SiteRecord& record = rules.sites[site];
        record.session = row.Text(1);
        RETURN_IF_ERROR(FromName(database, "state", row.Text(2), core::kSiteStates, core::SiteStateName, record.state));
        RETURN_IF_ERROR(FromName(database, "end", row.Text(11), core::kEnds, core::EndedName, record.ended));
        record.reason = row.Text(3);
        RETURN_IF_ERROR(ParseList(database, "first_versions of " + site, row.Text(4), record.first_versions));
        record.stay = row.Integer(6);
        record.refusals = static_cast<int>(row.Integer(7));
        record.quarantined = row.Integer(8) != 0;
        record.starts_anew = row.Integer(9) != 0;
        record.releases = row.Integer(10);
        return ParseList(database, "last_merged of " + site, row.Text(5), record.last_merged);
      });
}

// The rules index these lists by fragment. An active site has its place in the schedule of every fragment; any other
// may not have entered yet.
absl::Status CheckSites(const Database& database, const std::map<core::SiteId, core::SiteRecord>& sites,
                        size_t fragments) {
  for (const auto& [site, record] : sites) {
    const auto wrong = [&, &site = site, &record = record](const char* list, size_t got) {
      return database.Damaged(absl::StrCat("table sites, site ", site, " (", core::SiteStateName(record.state),
                                           "): expected ", fragments, " versions in ", list,
                                           ", one for each fragment, got ", got));
    };
    const bool may_be_empty = !core::IsActive(record.state) && record.first_versions.empty();
    if (record.first_versions.size() != fragments && !may_be_empty) {
      return wrong("first_versions", record.first_versions.size());
    }
    if (record.last_merged.size() != fragments) return wrong("last_merged", record.last_merged.size());
  }
  return absl::OkStatus();
}

constexpr char kContributionColumns[] =
    "SELECT site, base, tokens, steps, segment, offset, chunk_bytes, chunk_digests, weight, norm, "
    "factor FROM contributions ";

StoredContribution ContributionFrom(const SqlRow& row) {
  return {.site = row.Text(0),
          .admitted = {.base = row.Integer(1), .tokens = row.Integer(2), .steps = row.Integer(3), .norm = row.Real(9)},
          .extent = ExtentFrom(row, 4),
          .weight = static_cast<float>(row.Real(8)),
          .factor = static_cast<float>(row.Real(10))};
}

absl::Status LoadContributors(Database& database, StoredRound& round) {
  static const std::string sql =
      absl::StrCat(kContributionColumns, "WHERE fragment = ? AND merged_version = ? ORDER BY site, base");
  return database.Query(sql, {int64_t{round.record.fragment}, round.record.base + 1}, [&](const SqlRow& row) {
    StoredContribution contribution = ContributionFrom(row);
    round.record.contributors.push_back(
        {contribution.site, contribution.admitted.base, contribution.weight, contribution.factor});
    if (contribution.extent.segment != 0) round.contributions.push_back(std::move(contribution));
    return absl::OkStatus();
  });
}

absl::StatusOr<core::CodecId> CodecFrom(const Database& database, const std::string& name) {
  const std::optional<core::CodecId> codec = core::CodecFromName(name);
  return codec ? absl::StatusOr<core::CodecId>(*codec) : database.Damaged(absl::StrCat("a round has the codec ", name));
}

absl::StatusOr<StoredRound> RoundFrom(const Database& database, core::FragmentId fragment, const SqlRow& row) {
  StoredRound round;
  round.record.fragment = fragment;
  round.record.base = row.Integer(0) - 1;
  round.record.outer = {.lr = static_cast<float>(row.Real(1)),
                        .momentum = static_cast<float>(row.Real(2)),
                        .gain = static_cast<float>(row.Real(15))};
  RETURN_IF_ERROR(ParseList(database, "sites of a round", row.Text(3), round.record.sites));
  round.record.reason = row.Text(4);
  round.update = ExtentFrom(row, 5);
  if (!row.IsNull(12)) round.record.rolled_back_to = row.Integer(12);
  round.record.run_tokens = row.Integer(13);
  round.record.revision = row.Integer(14);
  if (row.IsNull(9)) return round;
  RoundCodecs& codecs = round.record.codecs.emplace();
  ASSIGN_OR_RETURN(codecs.up, CodecFrom(database, row.Text(9)));
  ASSIGN_OR_RETURN(codecs.down, CodecFrom(database, row.Text(10)));
  ASSIGN_OR_RETURN(codecs.next_up, CodecFrom(database, row.Text(11)));
  return round;
}

// Rounds after the snapshot, and those up to it whose update is stored.
absl::Status LoadRounds(Database& database, core::FragmentId fragment, StoredFragment& stored) {
  std::vector<StoredRound> rounds;
  RETURN_IF_ERROR(
      database.Query("SELECT version, lr, momentum, sites, reason, update_segment, update_offset, update_chunk_bytes, "
                     "update_chunk_digests, codec_up, codec_down, codec_next_up, rolled_back_to, run_tokens, "
                     "config_revision, gain FROM rounds WHERE fragment = ? AND (version > ? OR update_segment <> 0) "
                     "ORDER BY version",
                     {int64_t{fragment}, stored.snapshot}, [&](const SqlRow& row) -> absl::Status {
                       ASSIGN_OR_RETURN(StoredRound round, RoundFrom(database, fragment, row));
                       rounds.push_back(std::move(round));
                       return absl::OkStatus();
                     }));
  for (StoredRound& round : rounds) {
    const core::Version version = round.record.base + 1;
    RETURN_IF_ERROR(LoadContributors(database, round));
    ASSIGN_OR_RETURN(const std::optional<MergedRow> merged, ReadMerged(database, fragment, version));
    round.digest = merged->digest;
    if (version <= stored.snapshot) {
      stored.updates.push_back(std::move(round));
      continue;
    }
    const core::Version expected = stored.snapshot + static_cast<core::Version>(stored.to_replay.size()) + 1;
    if (version != expected || round.contributions.size() != round.record.contributors.size()) {
      return database.Damaged(absl::StrCat("expected version ", expected, " of fragment ", fragment,
                                           " with all of its contributions, got version ", version, " with ",
                                           round.contributions.size(), " of ", round.record.contributors.size()));
    }
    stored.to_replay.push_back(std::move(round));
  }
  return absl::OkStatus();
}

absl::StatusOr<core::SettingsChain> LoadSettings(Database& database) {
  core::SettingsChain settings;
  ASSIGN_OR_RETURN(const std::optional<std::string> before, ReadMeta(database, "settings_before"));
  if (before) {
    ASSIGN_OR_RETURN(settings.before, DigestFrom(database, *before));
  }
  uint64_t parent = settings.before;
  RETURN_IF_ERROR(database.Query(
      "SELECT number, step, versions, run_config, changes, unix_ms, nonce, digest FROM settings ORDER BY number", {},
      [&](const SqlRow& row) -> absl::Status {
        core::SettingsRevision revision{.number = row.Integer(0),
                                        .step = row.Integer(1),
                                        .versions = {},
                                        .run_config = row.Text(3),
                                        .changes = {},
                                        .unix_ms = row.Integer(5)};
        RETURN_IF_ERROR(ParseList(database, "versions of a revision", row.Text(2), revision.versions));
        RETURN_IF_ERROR(ParseList(database, "changes of a revision", row.Text(4), revision.changes));
        if (!row.IsNull(7)) {
          ASSIGN_OR_RETURN(revision.nonce, DigestFrom(database, row.Text(6)));
          ASSIGN_OR_RETURN(revision.digest, DigestFrom(database, row.Text(7)));
        } else {  // of a program before there were digests
          revision.digest = core::DigestOf(parent, revision);
        }
        parent = revision.digest;
        settings.revisions.push_back(std::move(revision));
        return absl::OkStatus();
      }));
  return settings;
}

// The last contributions of each site in the run, against whose lengths the next are measured.
absl::Status LoadMerged(Database& database, core::RoundState& rules) {
  return database.Query(
      "SELECT fragment, site, merged_version, base, tokens, steps, norm, factor FROM (SELECT *, row_number() OVER "
      "(PARTITION BY fragment, site ORDER BY merged_version DESC) AS place FROM contributions WHERE norm IS NOT NULL "
      "AND "
      "merged_version IS NOT NULL) WHERE place <= ? ORDER BY merged_version",
      {int64_t{core::kMergedKept}}, [&](const SqlRow& row) {
        const auto record = rules.sites.find(row.Text(1));
        const auto fragment = static_cast<size_t>(row.Integer(0));
        if (record == rules.sites.end() || fragment >= rules.versions.size()) return absl::OkStatus();
        record->second.merged.resize(rules.versions.size());
        record->second.merged[fragment].push_back(
            {.version = row.Integer(2),
             .admitted = {row.Integer(3), row.Integer(4), row.Integer(5), row.Real(6)},
             .factor = static_cast<float>(row.Real(7))});
        return absl::OkStatus();
      });
}

absl::StatusOr<StoredFragment> LoadFragment(Database& database, core::FragmentId fragment) {
  StoredFragment stored;
  bool has_snapshot = false;
  RETURN_IF_ERROR(database.Query("SELECT max(version), run_tokens FROM snapshots WHERE fragment = ?",
                                 {int64_t{fragment}}, [&](const SqlRow& row) {
                                   has_snapshot = !row.IsNull(0);
                                   stored.snapshot = row.Integer(0);
                                   stored.facts.run_tokens = row.Integer(1);
                                   return absl::OkStatus();
                                 }));
  if (!has_snapshot) return database.Damaged(absl::StrCat("names no snapshot of fragment ", fragment));
  RETURN_IF_ERROR(database.Query(
      "SELECT codec_next_up FROM rounds WHERE fragment = ? AND version = ? AND codec_next_up IS NOT NULL",
      {int64_t{fragment}, stored.snapshot}, [&](const SqlRow& row) -> absl::Status {
        ASSIGN_OR_RETURN(stored.facts.up, CodecFrom(database, row.Text(0)));
        return absl::OkStatus();
      }));
  RETURN_IF_ERROR(LoadRounds(database, fragment, stored));
  static const std::string open_sql =
      absl::StrCat(kContributionColumns, "WHERE fragment = ? AND merged_version IS NULL ORDER BY site, base");
  RETURN_IF_ERROR(database.Query(open_sql, {int64_t{fragment}}, [&](const SqlRow& row) {
    stored.open.push_back(ContributionFrom(row));
    return absl::OkStatus();
  }));
  return stored;
}

}  // namespace

absl::StatusOr<StoredRun> LoadRun(Database& database, const core::Shard& shard) {
  StoredRun stored;
  ASSIGN_OR_RETURN(const std::optional<std::string> run_config, ReadMeta(database, "run_config"));
  stored.run_config = run_config.value_or("");
  RETURN_IF_ERROR(LoadRunRecord(database, /*prefix=*/"", stored.run));
  RETURN_IF_ERROR(LoadModel(database, stored.model));
  RETURN_IF_ERROR(LoadEvalLoss(database, stored.eval_loss));
  RETURN_IF_ERROR(LoadData(database, stored.data));
  ASSIGN_OR_RETURN(stored.settings, LoadSettings(database));
  core::RoundState& rules = stored.rounds;
  RETURN_IF_ERROR(LoadRules(database, rules));
  rules.seeded = !stored.run.tensors_of_fragment.empty();
  if (rules.seeded) RETURN_IF_ERROR(CheckSites(database, rules.sites, stored.run.tensors_of_fragment.size()));
  for (size_t p = 0; p < stored.run.tensors_of_fragment.size(); ++p) {
    StoredFragment fragment;  // nothing is stored for other shards
    if (shard.Owns(static_cast<core::FragmentId>(p))) {
      ASSIGN_OR_RETURN(fragment, LoadFragment(database, static_cast<core::FragmentId>(p)));
    }
    rules.versions.push_back(fragment.snapshot + static_cast<core::Version>(fragment.to_replay.size()));
    rules.tokens.push_back(fragment.to_replay.empty() ? fragment.facts.run_tokens
                                                      : fragment.to_replay.back().record.run_tokens);
    auto& open = rules.contributions.emplace_back();
    for (const StoredContribution& contribution : fragment.open) open[contribution.site] = contribution.admitted;
    stored.fragments.push_back(std::move(fragment));
  }
  RETURN_IF_ERROR(LoadMerged(database, rules));
  return stored;
}

absl::StatusOr<std::map<int64_t, int64_t>> LoadSegmentEnds(Database& database) {
  std::map<int64_t, int64_t> ends;
  const auto add = [&](const SqlRow& row) {
    const Extent extent = ExtentFrom(row, 0);
    int64_t& end = ends[extent.segment];
    end = std::max(end, extent.offset + extent.bytes());
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(database.Query(
      "SELECT segment, offset, chunk_bytes, chunk_digests FROM contributions WHERE segment <> 0", {}, add));
  RETURN_IF_ERROR(
      database.Query("SELECT update_segment, update_offset, update_chunk_bytes, update_chunk_digests FROM rounds "
                     "WHERE update_segment <> 0",
                     {}, add));
  return ends;
}

absl::StatusOr<std::vector<Extent>> LoadNeededPayloads(Database& database) {
  std::vector<Extent> payloads;
  RETURN_IF_ERROR(database.Query(
      "SELECT segment, offset, chunk_bytes, chunk_digests FROM contributions AS c WHERE segment <> 0 AND "
      "(merged_version IS NULL OR merged_version > (SELECT max(version) FROM snapshots AS s WHERE s.fragment = "
      "c.fragment))",
      {}, [&](const SqlRow& row) {
        payloads.push_back(ExtentFrom(row, 0));
        return absl::OkStatus();
      }));
  return payloads;
}

absl::StatusOr<std::vector<Event>> LoadEvents(Database& database, int64_t after_id, int64_t limit,
                                              const std::string& kind) {
  std::vector<Event> events;
  size_t bytes = 0;
  const auto add = [&](const SqlRow& row) {
    if (bytes >= core::kMaxHistoryAnswerBytes) return absl::OkStatus();
    events.push_back({.id = row.Integer(0),
                      .unix_ms = row.Integer(1),
                      .kind = row.Text(2),
                      .site = row.Text(3),
                      .fragment = static_cast<core::FragmentId>(row.Integer(4)),
                      .text = row.Text(5)});
    bytes += events.back().text.size();
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(
      database.Query("SELECT id, unix_ms, kind, site, fragment, text FROM events WHERE id > ? AND (? = '' OR kind = ?) "
                     "ORDER BY id LIMIT ?",
                     {after_id, std::string_view(kind), std::string_view(kind), limit}, add));
  return events;
}

}  // namespace causeway::server
