#include "worker/site/checkpoint_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/json_text.h"

namespace causeway::worker {
namespace {

using nlohmann::json;

constexpr int kFormat = 5;        // with the folder's number
constexpr int kOldestFormat = 2;  // that is read

json AmountToJson(const TrainedAmount& amount) { return {{"tokens", amount.tokens}, {"steps", amount.steps}}; }

TrainedAmount AmountFromJson(const json& value) { return {.tokens = value.at("tokens"), .steps = value.at("steps")}; }

json SentToJson(const std::optional<SentFacts>& sent) {
  if (!sent) return nullptr;
  return {{"base", sent->base},
          {"amount", AmountToJson(sent->amount)},
          {"weight", AmountToJson(sent->weight)},
          {"admitted", sent->admitted}};
}

std::optional<SentFacts> SentFromJson(const json& value) {
  if (value.is_null()) return std::nullopt;
  return SentFacts{.base = value.at("base"),
                   .amount = AmountFromJson(value.at("amount")),
                   .weight = AmountFromJson(value.at("weight")),
                   .admitted = value.at("admitted")};
}

json FragmentToJson(const FragmentFacts& fragment, const replica::ReplicaArrays& arrays) {
  return {{"version", fragment.version},
          {"applied", fragment.applied},
          {"first", fragment.first},
          {"resolved", fragment.resolved},
          {"merged", fragment.merged},
          {"sites", fragment.sites},
          {"sent", SentToJson(fragment.sent)},
          {"merged_amount", AmountToJson(fragment.merged_amount)},
          {"delay", fragment.delay},
          {"outer_lr", arrays.step_lr},
          {"run_tokens", fragment.run_tokens},
          {"pending", arrays.pending},
          {"up", arrays.up ? json(core::CodecName(*arrays.up)) : json(nullptr)}};
}

FragmentFacts FactsFromJson(const json& value) {
  return {.version = value.at("version"),
          .applied = value.at("applied"),
          .first = value.at("first"),
          .resolved = value.at("resolved"),
          .merged = value.at("merged"),
          .sites = value.at("sites"),
          .sent = SentFromJson(value.at("sent")),
          .merged_amount = AmountFromJson(value.at("merged_amount")),
          .run_tokens = value.value("run_tokens", int64_t{0}),
          .delay = value.at("delay")};
}

replica::ReplicaArrays ArraysFromJson(const json& value) {
  replica::ReplicaArrays arrays{.step_lr = value.at("outer_lr"), .pending = value.at("pending"), .up = std::nullopt};
  if (const json& up = value.at("up"); !up.is_null()) {
    arrays.up = core::CodecFromName(up.get<std::string>());
    if (!arrays.up) throw std::invalid_argument("codec " + core::ShownJson(up));
  }
  return arrays;
}

json Identity(const CheckpointIdentity& identity) {
  return {{"format", kFormat},           {"run_id", identity.run},      {"site", identity.site},
          {"session", identity.session}, {"lineage", identity.lineage}, {"proofs", identity.proofs}};
}

CheckpointIdentity IdentityOf(const json& value) {
  return {.run = value.at("run_id"),
          .site = value.at("site"),
          .session = value.at("session"),
          .lineage = value.at("lineage"),
          .proofs = value.value("proofs", "")};
}

json SettingsToJson(const core::SettingsChain& settings) {
  json revisions = json::array();
  for (const core::SettingsRevision& one : settings.revisions) {
    revisions.push_back({{"number", one.number},
                         {"step", one.step},
                         {"versions", one.versions},
                         {"run_config", absl::Base64Escape(one.run_config)},
                         {"changes", one.changes},
                         {"unix_ms", one.unix_ms},
                         {"nonce", one.nonce},
                         {"digest", one.digest}});
  }
  return {{"before", settings.before}, {"revisions", std::move(revisions)}};
}

core::SettingsChain SettingsFromJson(const json& value) {
  core::SettingsChain settings{.before = value.at("before"), .revisions = {}};
  for (const json& one : value.at("revisions")) {
    std::string run_config;
    if (!absl::Base64Unescape(one.at("run_config").get<std::string>(), &run_config)) {
      throw std::invalid_argument("run_config of a revision");
    }
    settings.revisions.push_back({.number = one.at("number"),
                                  .step = one.at("step"),
                                  .versions = one.at("versions"),
                                  .run_config = std::move(run_config),
                                  .changes = one.at("changes"),
                                  .unix_ms = one.at("unix_ms"),
                                  .nonce = one.at("nonce"),
                                  .digest = one.at("digest")});
  }
  return settings;
}

constexpr char kFiles[] = "files";
constexpr std::string_view kSealBegin = ",\n \"digest\": \"", kSealEnd = "\"\n}";
constexpr size_t kDigestDigits = 16;

uint64_t DigestOf(std::string_view text) { return core::Xxh3(text.data(), text.size()); }

// `text` is a JSON object over several lines.
std::string Sealed(std::string text) {
  text.resize(text.size() - 2);  // "\n}"
  const std::string digest = core::DigestText(DigestOf(text));
  return text.append(kSealBegin).append(digest).append(kSealEnd);
}

// Nothing for a text without a seal.
absl::StatusOr<bool> CheckSeal(std::string_view text) {
  const size_t seal = kSealBegin.size() + kDigestDigits + kSealEnd.size();
  if (text.size() < seal) return false;
  const std::string_view contents = text.substr(0, text.size() - seal);
  text.remove_prefix(contents.size());
  if (!text.starts_with(kSealBegin) || !text.ends_with(kSealEnd)) return false;
  const std::string expected(text.substr(kSealBegin.size(), kDigestDigits));
  const std::string got = core::DigestText(DigestOf(contents));
  if (expected == got) return true;
  return absl::InvalidArgumentError(absl::StrCat("is damaged: expected XXH3-64 ", expected, ", got ", got));
}

std::map<std::string, formats::FileDigest> FilesFromJson(const json& files) {
  std::map<std::string, formats::FileDigest> digests;
  for (const auto& [name, file] : files.items()) {
    uint64_t hash = 0;
    if (!absl::SimpleHexAtoi(file.at("xxh3").get<std::string>(), &hash)) throw std::invalid_argument("xxh3 of " + name);
    digests[name] = {.bytes = file.at("bytes"), .hash = hash};
  }
  return digests;
}

// Calls `read` with the parsed text; exceptions of the library become a Status here.
template <typename Value, typename Read>
absl::StatusOr<Value> Parse(const std::string& text, Read read) {
  try {
    ASSIGN_OR_RETURN(const bool sealed, CheckSeal(text));
    ASSIGN_OR_RETURN(const json value, core::ParseJson<json>(text, "is not what a worker writes"));
    if (const int format = value.at("format"); format < kOldestFormat || format > kFormat) {
      return absl::FailedPreconditionError(absl::StrCat("is of another version of the program: expected format ",
                                                        kOldestFormat, " to ", kFormat, ", got ", format));
    }
    if (!sealed && value.contains(kFiles)) return absl::InvalidArgumentError("is damaged: its digest is missing");
    return read(value);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("is not what a worker writes: ", error.what()));
  }
}

}  // namespace

std::string CheckpointToJson(const CheckpointIdentity& identity, const SiteCheckpoint& checkpoint, int64_t number,
                             const std::map<std::string, formats::FileDigest>* files) {
  const SiteFacts& facts = checkpoint.facts;
  json value = Identity(identity);
  value["step"] = facts.step;
  value["trained"] = AmountToJson(facts.trained);
  value["sites"] = facts.sites;
  if (!checkpoint.settings.revisions.empty()) value["settings"] = SettingsToJson(checkpoint.settings);
  value["fragments"] = json::array();
  for (size_t p = 0; p < facts.fragments.size(); ++p) {
    value["fragments"].push_back(FragmentToJson(facts.fragments[p], checkpoint.arrays[p]));
  }
  if (files == nullptr) return value.dump(1);
  value["number"] = number;
  value[kFiles] = json::object();
  for (const auto& [name, file] : *files) {
    value[kFiles][name] = {{"bytes", file.bytes}, {"xxh3", core::DigestText(file.hash)}};
  }
  return Sealed(value.dump(1));
}

absl::StatusOr<LoadedCheckpoint> CheckpointFromJson(const std::string& text) {
  return Parse<LoadedCheckpoint>(text, [](const json& value) {
    LoadedCheckpoint loaded{
        .identity = IdentityOf(value), .number = value.value("number", int64_t{0}), .site = {}, .trainer_path = ""};
    loaded.site.facts = {.lineage = loaded.identity.lineage,
                         .step = value.at("step"),
                         .trained = AmountFromJson(value.at("trained")),
                         .sites = value.at("sites"),
                         .fragments = {}};
    for (const json& fragment : value.at("fragments")) {
      loaded.site.facts.fragments.push_back(FactsFromJson(fragment));
      loaded.site.arrays.push_back(ArraysFromJson(fragment));
    }
    if (value.contains("settings")) loaded.site.settings = SettingsFromJson(value.at("settings"));
    loaded.site.chunks.resize(loaded.site.arrays.size());
    loaded.files = FilesFromJson(value.value(kFiles, json::object()));
    return loaded;
  });
}

std::string IdentityToJson(const CheckpointIdentity& identity) { return Sealed(Identity(identity).dump(1)); }

absl::StatusOr<CheckpointIdentity> IdentityFromJson(const std::string& text) {
  return Parse<CheckpointIdentity>(text, [](const json& value) { return IdentityOf(value); });
}

}  // namespace causeway::worker
