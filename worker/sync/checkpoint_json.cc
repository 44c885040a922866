#include "worker/sync/checkpoint_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace causeway::worker {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;

json AmountToJson(const TrainedAmount& amount) { return {{"tokens", amount.tokens}, {"steps", amount.steps}}; }

TrainedAmount AmountFromJson(const json& value) { return {.tokens = value.at("tokens"), .steps = value.at("steps")}; }

json SentToJson(const std::optional<UnresolvedContribution>& sent) {
  if (!sent) return nullptr;
  return {{"base", sent->base},
          {"amount", AmountToJson(sent->amount)},
          {"weight", AmountToJson(sent->weight)},
          {"admitted", sent->admitted}};
}

std::optional<UnresolvedContribution> SentFromJson(const json& value) {
  if (value.is_null()) return std::nullopt;
  return UnresolvedContribution{.base = value.at("base"),
                                .amount = AmountFromJson(value.at("amount")),
                                .weight = AmountFromJson(value.at("weight")),
                                .chunks = nullptr,
                                .admitted = value.at("admitted")};
}

json FragmentToJson(const FragmentCheckpoint& fragment) {
  return {{"version", fragment.version},
          {"applied", fragment.applied},
          {"first", fragment.first},
          {"resolved", fragment.resolved},
          {"merged", fragment.merged},
          {"sites", fragment.sites},
          {"sent", SentToJson(fragment.sent)},
          {"merged_amount", AmountToJson(fragment.merged_amount)},
          {"delay", fragment.delay},
          {"outer_lr", fragment.arrays.last_outer.lr},
          {"outer_momentum", fragment.arrays.last_outer.momentum},
          {"pending", fragment.arrays.pending},
          {"up", fragment.arrays.up ? json(core::CodecName(*fragment.arrays.up)) : json(nullptr)}};
}

FragmentCheckpoint FragmentFromJson(const json& value) {
  FragmentCheckpoint fragment{.version = value.at("version"),
                              .applied = value.at("applied"),
                              .first = value.at("first"),
                              .resolved = value.at("resolved"),
                              .merged = value.at("merged"),
                              .sites = value.at("sites"),
                              .sent = SentFromJson(value.at("sent")),
                              .merged_amount = AmountFromJson(value.at("merged_amount")),
                              .delay = value.value("delay", core::Step{0}),
                              .arrays = {}};
  fragment.arrays.last_outer = {.lr = value.at("outer_lr"), .momentum = value.at("outer_momentum")};
  fragment.arrays.pending = value.at("pending");
  if (const json up = value.value("up", json(nullptr)); !up.is_null()) {
    fragment.arrays.up = core::CodecFromName(up.get<std::string>());
    if (!fragment.arrays.up) throw std::invalid_argument("codec " + up.dump());
  }
  return fragment;
}

json Identity(const CheckpointIdentity& identity) {
  return {{"format", kFormat},
          {"run_id", identity.run},
          {"site", identity.site},
          {"session", identity.session},
          {"lineage", identity.lineage}};
}

CheckpointIdentity IdentityOf(const json& value) {
  if (value.at("format") != kFormat) throw std::invalid_argument("format " + value.at("format").dump());
  return {.run = value.at("run_id"),
          .site = value.at("site"),
          .session = value.at("session"),
          .lineage = value.at("lineage")};
}

// `read` of the parsed text; what the library throws becomes a Status here.
template <typename Value, typename Read>
absl::StatusOr<Value> Parse(const std::string& text, Read read) {
  try {
    return read(json::parse(text));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("is not what a worker writes: ", error.what()));
  }
}

}  // namespace

std::string CheckpointToJson(const CheckpointIdentity& identity, const SyncCheckpoint& checkpoint) {
  json value = Identity(identity);
  value["step"] = checkpoint.step;
  value["trained"] = AmountToJson(checkpoint.trained);
  value["sites"] = checkpoint.sites;
  value["fragments"] = json::array();
  for (const FragmentCheckpoint& fragment : checkpoint.fragments)
    value["fragments"].push_back(FragmentToJson(fragment));
  return value.dump(1);
}

absl::StatusOr<LoadedCheckpoint> CheckpointFromJson(const std::string& text) {
  return Parse<LoadedCheckpoint>(text, [](const json& value) {
    LoadedCheckpoint loaded{.identity = IdentityOf(value), .sync = {}, .trainer_path = ""};
    loaded.sync.step = value.at("step");
    loaded.sync.trained = AmountFromJson(value.at("trained"));
    loaded.sync.sites = value.at("sites");
    for (const json& fragment : value.at("fragments")) loaded.sync.fragments.push_back(FragmentFromJson(fragment));
    return loaded;
  });
}

std::string IdentityToJson(const CheckpointIdentity& identity) { return Identity(identity).dump(1); }

absl::StatusOr<CheckpointIdentity> IdentityFromJson(const std::string& text) {
  return Parse<CheckpointIdentity>(text, [](const json& value) { return IdentityOf(value); });
}

}  // namespace causeway::worker
