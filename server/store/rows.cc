#include "server/store/rows.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/limits.h"
#include "core/outer_step.h"
#include "server/store/snapshots.h"

namespace causeway::server {
namespace {

template <typename T>
std::string List(const std::vector<T>& values) {
  return nlohmann::json(values).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string RoundName(core::FragmentId fragment, core::Version version) {
  return absl::StrCat("version ", version, " of fragment ", fragment);
}

SqlValue CodecValue(const std::optional<RoundCodecs>& codecs, core::CodecId RoundCodecs::*leg) {
  return codecs ? SqlValue(std::string_view(core::CodecName(*codecs.*leg))) : SqlValue(std::monostate());
}

std::string ManifestText(const core::Manifest& manifest) {
  nlohmann::json list = nlohmann::json::array();
  for (const core::TensorSpec& tensor : manifest) {
    nlohmann::json& row = list.emplace_back(nlohmann::json{{"name", tensor.name},
                                                           {"shape", tensor.shape},
                                                           {"kind", static_cast<int>(tensor.kind)},
                                                           {"layer", tensor.layer}});
    // Fields that most tensors lack are written only where present, since older programs did not know them.
    if (tensor.dtype != core::DType::kFloat32) row["dtype"] = static_cast<int>(tensor.dtype);
    if (!tensor.alias_of.empty()) row["alias_of"] = tensor.alias_of;
    if (tensor.frozen) row["frozen"] = true;
    if (tensor.values_digest != 0) row["values_digest"] = tensor.values_digest;
  }
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A whole tensor is stored as its number, as before tensors could be divided; a part as [number, first unit, units].
std::string PartsText(const std::vector<std::vector<core::TensorPart>>& parts_of_fragment) {
  nlohmann::json list = nlohmann::json::array();
  for (const std::vector<core::TensorPart>& parts : parts_of_fragment) {
    nlohmann::json& fragment = list.emplace_back(nlohmann::json::array());
    for (const core::TensorPart& part : parts) {
      if (part.whole()) {
        fragment.push_back(part.tensor);
      } else {
        fragment.push_back({part.tensor, part.begin_unit, part.num_units});
      }
    }
  }
  return list.dump();
}

std::string NumberText(double number) { return absl::StrFormat("%.17g", number); }

}  // namespace

VersionFacts FactsOf(const RoundRecord& round) {
  return {.up = round.codecs ? std::optional(round.codecs->next_up) : std::nullopt, .run_tokens = round.run_tokens};
}

absl::StatusOr<uint64_t> DigestFrom(const Database& database, const std::string& text) {
  uint64_t digest = 0;
  if (absl::SimpleHexAtoi(text, &digest)) return digest;
  return database.Damaged(absl::StrCat("expected 16 hexadecimal digits, got ", text));
}

RunRecord RunRecordOf(const core::FragmentMap& map) {
  return {.manifest = map.manifest(), .tensors_of_fragment = map.parts()};
}

absl::StatusOr<std::optional<std::string>> ReadMeta(Database& database, std::string_view key) {
  std::optional<std::string> value;
  RETURN_IF_ERROR(database.Query("SELECT value FROM meta WHERE key = ?", {key}, [&](const SqlRow& row) {
    if (!row.IsNull(0)) value = row.Text(0);
    return absl::OkStatus();
  }));
  return value;
}

absl::Status WriteMeta(Database& database, std::string_view key, SqlValue value) {
  return database.Run("INSERT OR REPLACE INTO meta VALUES (?, ?)", {key, value});
}

Extent ExtentFrom(const SqlRow& row, int first) {
  return {.segment = row.Integer(first),
          .offset = row.Integer(first + 1),
          .chunk_bytes = FromBlob<uint32_t>(row.Text(first + 2)),
          .chunk_digests = FromBlob<uint64_t>(row.Text(first + 3))};
}

absl::StatusOr<std::optional<MergedRow>> ReadMerged(Database& database, core::FragmentId fragment,
                                                    core::Version version) {
  std::optional<MergedRow> merged;
  RETURN_IF_ERROR(database.Query(
      "SELECT digest, update_segment, update_offset, update_chunk_bytes, update_chunk_digests FROM rounds "
      "WHERE fragment = ? AND version = ?",
      {int64_t{fragment}, version}, [&](const SqlRow& row) -> absl::Status {
        merged.emplace();
        merged->update = ExtentFrom(row, 1);
        if (row.IsNull(0)) return absl::OkStatus();
        ASSIGN_OR_RETURN(merged->digest, DigestFrom(database, row.Text(0)));
        return absl::OkStatus();
      }));
  return merged;
}

absl::Status WriteContribution(Database& database, const ContributionRecord& contribution, const Extent& extent) {
  const auto& [base, tokens, steps, norm] = contribution.admitted;
  const absl::Status status = database.Run(
      "INSERT INTO contributions (fragment, site, base, tokens, steps, segment, offset, chunk_bytes, "
      "chunk_digests, norm) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      {int64_t{contribution.fragment}, contribution.site, base, tokens, steps, extent.segment, extent.offset,
       Blob{ToBlob(extent.chunk_bytes)}, Blob{ToBlob(extent.chunk_digests)},
       norm > 0 ? SqlValue(norm) : SqlValue(std::monostate())});
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("contribution of ", contribution.site, " to fragment ", contribution.fragment,
                                   " from base version ", base, ": ", status.message()));
}

// No contribution that waited for the round is merged, and nothing is measured against the withdrawn rounds.
static absl::Status TakeBack(Database& database, const RoundRecord& round) {
  RETURN_IF_ERROR(database.Run("DELETE FROM contributions WHERE fragment = ? AND merged_version IS NULL",
                               {int64_t{round.fragment}}));
  return database.Run("UPDATE contributions SET norm = NULL WHERE fragment = ? AND merged_version > ?",
                      {int64_t{round.fragment}, *round.rolled_back_to});
}

absl::Status WriteRound(Database& database, const RoundRecord& round, int64_t unix_ms) {
  const core::Version version = round.base + 1;
  const std::string name = RoundName(round.fragment, version);
  const absl::Status status = database.Run(
      "INSERT INTO rounds (fragment, version, decided_unix_ms, lr, momentum, sites, reason, numerics_version, "
      "config_revision, update_segment, update_offset, update_bytes, codec_up, codec_down, codec_next_up, "
      "rolled_back_to, run_tokens, gain) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?, ?, ?, ?, ?, ?)",
      {int64_t{round.fragment}, version, unix_ms, double{round.outer.lr}, double{round.outer.momentum},
       List(round.sites), round.reason, int64_t{core::kNumericsVersion}, round.revision,
       CodecValue(round.codecs, &RoundCodecs::up), CodecValue(round.codecs, &RoundCodecs::down),
       CodecValue(round.codecs, &RoundCodecs::next_up),
       round.rolled_back_to ? SqlValue(*round.rolled_back_to) : SqlValue(std::monostate()), round.run_tokens,
       double{round.outer.gain}});
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
  if (round.rolled_back_to) RETURN_IF_ERROR(TakeBack(database, round));
  for (const RoundRecord::Contributor& contributor : round.contributors) {
    CHECK(std::isfinite(contributor.weight));
    RETURN_IF_ERROR(
        database.Run("UPDATE contributions SET merged_version = ?, weight = ?, factor = ? "
                     "WHERE fragment = ? AND site = ? AND base = ? AND merged_version IS NULL",
                     {version, double{contributor.weight}, double{contributor.factor}, int64_t{round.fragment},
                      contributor.site, contributor.base}));
    if (database.changed_rows() == 1) continue;
    return absl::InternalError(absl::StrCat(name, " merges the contribution of ", contributor.site,
                                            " from base version ", contributor.base,
                                            ", which was not admitted or is merged already"));
  }
  return absl::OkStatus();
}

absl::Status WriteMerged(Database& database, const MergedRecord& merged, const Extent& update) {
  const core::Version version = merged.base + 1;
  ASSIGN_OR_RETURN(const std::optional<MergedRow> row, ReadMerged(database, merged.fragment, version));
  const std::string name = RoundName(merged.fragment, version);
  if (!row) return absl::InternalError(absl::StrCat(name, " was merged without a decision"));
  if (row->digest && *row->digest != merged.digest) {
    return absl::DataLossError(absl::StrCat(name, " has digest ", core::DigestText(merged.digest), ", but had ",
                                            core::DigestText(*row->digest),
                                            " when it was merged first: a contribution, a snapshot or this machine's "
                                            "memory is damaged, or the arithmetic changed"));
  }
  return database.Run(
      "UPDATE rounds SET digest = ?, update_segment = ?, update_offset = ?, update_chunk_bytes = ?, "
      "update_chunk_digests = ?, update_bytes = ? WHERE fragment = ? AND version = ?",
      {core::DigestText(merged.digest), update.segment, update.offset, Blob{ToBlob(update.chunk_bytes)},
       Blob{ToBlob(update.chunk_digests)}, update.bytes(), int64_t{merged.fragment}, version});
}

absl::Status LetUpdatesGo(Database& database, std::string_view condition, std::initializer_list<SqlValue> values) {
  return database.Run(
      absl::StrCat("UPDATE rounds SET update_segment = 0, update_offset = 0, update_chunk_bytes = NULL, "
                   "update_chunk_digests = NULL, update_bytes = 0 WHERE ",
                   std::string(condition)),
      values);
}

absl::Status WriteEvalLoss(Database& database, const EvalLoss& loss) {
  const auto write = [&](std::string_view key, std::optional<double> value) {
    // A text, because SQLite has no NaN.
    return value ? WriteMeta(database, key, NumberText(*value)) : WriteMeta(database, key, std::monostate());
  };
  RETURN_IF_ERROR(write("eval_loss_start", loss.start));
  RETURN_IF_ERROR(write("eval_loss_latest", loss.latest));
  nlohmann::json by_site = nlohmann::json::object();
  for (const auto& [site, one] : loss.by_site) {
    by_site[site] = {{"loss", NumberText(one.loss)}, {"versions", one.versions}};
  }
  if (!loss.by_site.empty()) RETURN_IF_ERROR(WriteMeta(database, "eval_loss_by_site", by_site.dump()));
  return WriteMeta(database, "eval_loss_versions", List(loss.versions));
}

absl::Status WriteData(Database& database, const core::DataOfSites& data) {
  const auto text = [](const core::DataFingerprint& fingerprint) {
    return nlohmann::json{{"tokens", fingerprint.tokens}, {"digest", core::DigestText(fingerprint.digest)}};
  };
  nlohmann::json sites = nlohmann::json::object();
  for (const auto& [site, one] : data) {
    nlohmann::json& said = sites[site] = nlohmann::json::object();
    if (one.training) said["training"] = text(*one.training);
    if (one.held_out) said["held_out"] = text(*one.held_out);
  }
  return WriteMeta(database, "data_of_sites", sites.dump());
}

absl::Status WriteRun(Database& database, const RunRecord& run) {
  ASSIGN_OR_RETURN(const std::optional<std::string> earlier, ReadMeta(database, "manifest"));
  if (earlier) return absl::InternalError(absl::StrCat(database.path(), ": the run has begun already"));
  RETURN_IF_ERROR(WriteMeta(database, "manifest", ManifestText(run.manifest)));
  RETURN_IF_ERROR(WriteMeta(database, "tensors_of_fragment", PartsText(run.tensors_of_fragment)));
  return WriteMeta(database, "seeded", int64_t{1});
}

// A higher generation ends the seed of the one before, if there is one. Its snapshots are replaced by the next seed's.
absl::Status WriteModel(Database& database, const ModelRecord& model) {
  ASSIGN_OR_RETURN(const std::optional<std::string> earlier, ReadMeta(database, "model_generation"));
  if (earlier.value_or("1") != absl::StrCat(model.generation)) {
    RETURN_IF_ERROR(database.Run("DELETE FROM meta WHERE key IN ('manifest', 'tensors_of_fragment', 'seeded')", {}));
  }
  RETURN_IF_ERROR(WriteMeta(database, "model_generation", static_cast<int64_t>(model.generation)));
  RETURN_IF_ERROR(WriteMeta(database, "model_manifest", ManifestText(model.run.manifest)));
  RETURN_IF_ERROR(WriteMeta(database, "model_tensors_of_fragment", PartsText(model.run.tensors_of_fragment)));
  return WriteMeta(database, "model_seeder", model.seeder);
}

absl::Status WriteSettings(Database& database, const core::SettingsChain& settings) {
  if (settings.before != 0) RETURN_IF_ERROR(WriteMeta(database, "settings_before", core::DigestText(settings.before)));
  for (const core::SettingsRevision& revision : settings.revisions) {
    RETURN_IF_ERROR(database.Run(
        "INSERT INTO settings VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        {revision.number, revision.step, List(revision.versions), Blob{revision.run_config}, List(revision.changes),
         revision.unix_ms, core::DigestText(revision.nonce), core::DigestText(revision.digest)}));
  }
  return absl::OkStatus();
}

// ---- EventRows ----

absl::Status EventRows::Forget(Database& database, std::string_view condition, std::initializer_list<SqlValue> values) {
  const std::string sql = absl::StrCat("DELETE FROM events WHERE kind <> 'command' AND ", std::string(condition),
                                       " RETURNING length(CAST(text AS BLOB))");
  return database.Query(sql, values, [this](const SqlRow& row) {
    *bytes_ -= row.Integer(0);
    return absl::OkStatus();
  });
}

absl::Status EventRows::Write(Database& database, const Event& event, int64_t unix_ms) {
  if (!bytes_) {
    bytes_ = 0;
    RETURN_IF_ERROR(database.Query("SELECT sum(length(CAST(text AS BLOB))) FROM events WHERE kind <> 'command'", {},
                                   [this](const SqlRow& row) {
                                     bytes_ = row.Integer(0);
                                     return absl::OkStatus();
                                   }));
  }
  RETURN_IF_ERROR(database.Run("INSERT INTO events (unix_ms, kind, site, fragment, text) VALUES (?, ?, ?, ?, ?)",
                               {unix_ms, event.kind, event.site, int64_t{event.fragment}, event.text}));
  // Ids rise by one, so at most one event becomes too old; older ones are commands, which stay.
  constexpr int64_t kWindow = 1'000;
  RETURN_IF_ERROR(Forget(database, "id > last_insert_rowid() - ? AND id <= last_insert_rowid() - ?",
                         {core::kMaxHistoryEvents + kWindow, core::kMaxHistoryEvents}));
  if (event.kind != "command") {
    *bytes_ += std::ssize(event.text);
    if (*bytes_ <= core::kMaxHistoryBytes) return absl::OkStatus();
    return Forget(database, "id IN (SELECT id FROM events WHERE kind <> 'command' ORDER BY id LIMIT ?)", {kWindow});
  }
  return database.Run(
      "DELETE FROM events WHERE kind = 'command' AND id <= "
      "(SELECT id FROM events WHERE kind = 'command' ORDER BY id DESC LIMIT 1 OFFSET ?)",
      {kMaxCommands});
}

absl::Status WriteSnapshotRow(Database& database, const SnapshotRow& snapshot) {
  // Replaces an earlier row: before the run has begun, another seed may replace an interrupted one.
  const auto& [fragment, version, digest, hash, run_tokens] = snapshot;
  return database.Run("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?)",
                      {int64_t{fragment}, version, SnapshotFileName(fragment, version), core::DigestText(digest),
                       core::DigestText(hash), run_tokens});
}

absl::StatusOr<std::vector<SnapshotRow>> ReadSnapshotRows(Database& database, core::FragmentId fragment) {
  std::vector<SnapshotRow> snapshots;
  RETURN_IF_ERROR(
      database.Query("SELECT version, digest, hash FROM snapshots WHERE fragment = ? ORDER BY version",
                     {int64_t{fragment}}, [&](const SqlRow& row) -> absl::Status {
                       SnapshotRow& snapshot = snapshots.emplace_back(SnapshotRow{fragment, row.Integer(0)});
                       ASSIGN_OR_RETURN(snapshot.digest, DigestFrom(database, row.Text(1)));
                       ASSIGN_OR_RETURN(snapshot.hash, DigestFrom(database, row.Text(2)));
                       return absl::OkStatus();
                     }));
  return snapshots;
}

// The site's contributions are no history of lengths any more.
static absl::Status ForgetLengths(Database& database, const core::SiteId& site) {
  return database.Run("UPDATE contributions SET norm = NULL WHERE site = ? AND merged_version IS NOT NULL", {site});
}

absl::Status RulesRows::Write(Database& database, const core::RoundState& state) {
  if (!known_) {  // all rows are written again
    RETURN_IF_ERROR(database.Query("SELECT site, releases FROM sites", {}, [&](const SqlRow& row) {
      written_.sites[row.Text(0)].releases = row.Integer(1);
      return absl::OkStatus();
    }));
  }
  const auto flag = [&](std::string_view key, bool core::RoundState::*member) -> absl::Status {
    if (known_ && written_.*member == state.*member) return absl::OkStatus();
    written_.*member = state.*member;
    return WriteMeta(database, key, int64_t{state.*member});
  };
  RETURN_IF_ERROR(flag("seeded", &core::RoundState::seeded));
  RETURN_IF_ERROR(flag("started", &core::RoundState::started));
  RETURN_IF_ERROR(flag("finished", &core::RoundState::finished));
  RETURN_IF_ERROR(flag("paused", &core::RoundState::paused));
  RETURN_IF_ERROR(flag("stopped", &core::RoundState::stopped));
  for (const auto& [site, record] : state.sites) {
    const auto written = written_.sites.find(site);
    const bool was_there = written != written_.sites.end();
    if (known_ && was_there && written->second == record) continue;
    if (was_there && written->second.releases < record.releases) RETURN_IF_ERROR(ForgetLengths(database, site));
    RETURN_IF_ERROR(database.Run(
        "INSERT OR REPLACE INTO sites VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        {site, record.session, core::SiteStateName(record.state), record.reason, List(record.first_versions),
         List(record.last_merged), record.stay, int64_t{record.refusals}, int64_t{record.quarantined},
         int64_t{record.starts_anew}, record.releases, core::EndedName(record.ended)}));
    written_.sites[site] = record;
  }
  for (auto written = written_.sites.begin(); written != written_.sites.end();) {
    if (state.sites.contains(written->first)) {
      ++written;
      continue;
    }
    RETURN_IF_ERROR(database.Run("DELETE FROM sites WHERE site = ?", {written->first}));
    RETURN_IF_ERROR(ForgetLengths(database, written->first));
    written = written_.sites.erase(written);
  }
  known_ = true;
  return absl::OkStatus();
}

}  // namespace causeway::server
