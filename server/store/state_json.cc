#include "server/store/state_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/digest.h"

namespace causeway::server {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;  // rises when an older coordinator could not read it

template <typename T>
json OptionalToJson(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

std::optional<double> OptionalNumber(const json& value) {
  return value.is_null() ? std::nullopt : std::optional<double>(value.get<double>());
}

json SiteToJson(const core::SiteRecord& record) {
  return {{"session", record.session},
          {"state", static_cast<int>(record.state)},
          {"reason", record.reason},
          {"first_versions", record.first_versions},
          {"last_merged", record.last_merged}};
}

core::SiteRecord SiteFromJson(const json& value) {
  return {.session = value.at("session"),
          .state = static_cast<core::SiteState>(value.at("state").get<int>()),
          .reason = value.at("reason"),
          .first_versions = value.at("first_versions"),
          .last_merged = value.at("last_merged")};
}

json RoundsToJson(const core::RoundState& rounds) {
  json sites = json::object();
  for (const auto& [name, record] : rounds.sites) sites[name] = SiteToJson(record);
  json contributions = json::array();
  for (const auto& of_fragment : rounds.contributions) {
    json& bases = contributions.emplace_back(json::object());
    for (const auto& [site, admitted] : of_fragment) bases[site] = admitted.base;
  }
  return {{"seeded", rounds.seeded},     {"started", rounds.started},      {"finished", rounds.finished},
          {"versions", rounds.versions}, {"contributions", contributions}, {"sites", sites}};
}

core::RoundState RoundsFromJson(const json& value) {
  core::RoundState rounds{.seeded = value.at("seeded"),
                          .started = value.at("started"),
                          .finished = value.at("finished"),
                          .versions = value.at("versions"),
                          .contributions = {},
                          .sites = {}};
  for (const json& bases : value.at("contributions")) {
    auto& of_fragment = rounds.contributions.emplace_back();
    for (const auto& [site, base] : bases.items()) of_fragment[site] = {.base = base};
  }
  for (const auto& [name, record] : value.at("sites").items()) rounds.sites[name] = SiteFromJson(record);
  return rounds;
}

json TensorToJson(const core::TensorSpec& tensor) {
  return {
      {"name", tensor.name}, {"shape", tensor.shape}, {"kind", static_cast<int>(tensor.kind)}, {"layer", tensor.layer}};
}

core::TensorSpec TensorFromJson(const json& value) {
  return {.name = value.at("name"),
          .shape = value.at("shape"),
          .kind = static_cast<core::TensorKind>(value.at("kind").get<int>()),
          .layer = value.at("layer")};
}

json FragmentToJson(const SavedFragment& fragment) {
  json updates = json::array();
  for (const SavedUpdate& update : fragment.updates) {
    updates.push_back({{"base", update.base},
                       {"outer_lr", update.outer.lr},
                       {"outer_momentum", update.outer.momentum},
                       {"merged", update.merged},
                       {"sites", update.sites},
                       {"digest", core::DigestText(update.digest)}});
  }
  std::vector<core::SiteId> contributors;
  for (const auto& [site, chunks] : fragment.contributions) contributors.push_back(site);
  return {{"version", fragment.state->version},
          {"digest", core::DigestText(fragment.state->Digest())},
          {"updates", updates},
          {"contributions", contributors}};
}

uint64_t DigestFromText(const std::string& text) {
  uint64_t digest = 0;
  if (!absl::SimpleHexAtoi(text, &digest)) throw std::invalid_argument("digest " + text);
  return digest;
}

SavedFragment FragmentFromJson(const json& value) {
  SavedFragment fragment;
  for (const json& update : value.at("updates")) {
    fragment.updates.push_back({.base = update.at("base"),
                                .outer = {.lr = update.at("outer_lr"), .momentum = update.at("outer_momentum")},
                                .merged = update.at("merged"),
                                .sites = update.at("sites"),
                                .digest = DigestFromText(update.at("digest")),
                                .chunks = {}});
  }
  for (const core::SiteId site : value.at("contributions")) fragment.contributions[site];
  return fragment;
}

}  // namespace

std::string StateToJson(const SavedState& state) {
  json manifest = json::array();
  for (const core::TensorSpec& tensor : state.manifest) manifest.push_back(TensorToJson(tensor));
  json fragments = json::array();
  for (const SavedFragment& fragment : state.fragments) fragments.push_back(FragmentToJson(fragment));
  const json value = {{"format", kFormat},
                      {"run_config", absl::BytesToHexString(state.run_config)},
                      {"epoch", state.epoch},
                      {"lineage", state.lineage},
                      {"manifest", manifest},
                      {"tensors_of_fragment", state.tensors_of_fragment},
                      {"rounds", RoundsToJson(state.rounds)},
                      {"eval_loss",
                       {{"start", OptionalToJson(state.eval_loss.start)},
                        {"latest", OptionalToJson(state.eval_loss.latest)},
                        {"versions", state.eval_loss.versions}}},
                      {"fragments", fragments}};
  return value.dump(1);
}

// nlohmann::json throws on a missing key or a wrong type; the exception ends here.
absl::StatusOr<SavedState> StateFromJson(const std::string& text) try {
  const json value = json::parse(text);
  if (value.at("format") != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected format ", kFormat, ", got ", value.at("format").dump(), ": saved by another version"));
  }
  SavedState state{.run_config = absl::HexStringToBytes(value.at("run_config").get<std::string>()),
                   .epoch = value.at("epoch"),
                   .lineage = value.at("lineage"),
                   .tensors_of_fragment = value.at("tensors_of_fragment"),
                   .rounds = RoundsFromJson(value.at("rounds")),
                   .eval_loss = {.start = OptionalNumber(value.at("eval_loss").at("start")),
                                 .latest = OptionalNumber(value.at("eval_loss").at("latest")),
                                 .versions = value.at("eval_loss").at("versions")}};
  for (const json& tensor : value.at("manifest")) state.manifest.push_back(TensorFromJson(tensor));
  for (const json& fragment : value.at("fragments")) state.fragments.push_back(FragmentFromJson(fragment));
  return state;
} catch (const std::exception& error) {
  return absl::InvalidArgumentError(error.what());
}

}  // namespace causeway::server
