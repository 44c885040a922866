#include "worker/site/checkpoint_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace causeway::worker {
namespace {

using nlohmann::json;

constexpr int kFormat = 2;
constexpr int kFirstFormat = 1;  // that is read; what became of its last update is made anew from the gradient

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
  return {{"version", fragment.version},       {"applied", fragment.applied},
          {"first", fragment.first},           {"resolved", fragment.resolved},
          {"merged", fragment.merged},         {"sites", fragment.sites},
          {"sent", SentToJson(fragment.sent)}, {"merged_amount", AmountToJson(fragment.merged_amount)},
          {"delay", fragment.delay},           {"outer_lr", arrays.step_lr},
          {"pending", arrays.pending},         {"up", arrays.up ? json(core::CodecName(*arrays.up)) : json(nullptr)}};
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
          .delay = value.value("delay", core::Step{0})};
}

replica::ReplicaArrays ArraysFromJson(const json& value) {
  replica::ReplicaArrays arrays{.step_lr = value.at("outer_lr"), .pending = value.at("pending"), .up = std::nullopt};
  if (const json up = value.value("up", json(nullptr)); !up.is_null()) {
    arrays.up = core::CodecFromName(up.get<std::string>());
    if (!arrays.up) throw std::invalid_argument("codec " + up.dump());
  }
  return arrays;
}

json Identity(const CheckpointIdentity& identity) {
  return {{"format", kFormat},
          {"run_id", identity.run},
          {"site", identity.site},
          {"session", identity.session},
          {"lineage", identity.lineage}};
}

CheckpointIdentity IdentityOf(const json& value) {
  if (const int format = value.at("format"); format < kFirstFormat || format > kFormat) {
    throw std::invalid_argument(absl::StrCat("expected format ", kFirstFormat, " to ", kFormat, ", got ", format));
  }
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

std::string CheckpointToJson(const CheckpointIdentity& identity, const SiteCheckpoint& checkpoint) {
  const SiteFacts& facts = checkpoint.facts;
  json value = Identity(identity);
  value["step"] = facts.step;
  value["trained"] = AmountToJson(facts.trained);
  value["sites"] = facts.sites;
  value["fragments"] = json::array();
  for (size_t p = 0; p < facts.fragments.size(); ++p) {
    value["fragments"].push_back(FragmentToJson(facts.fragments[p], checkpoint.arrays[p]));
  }
  return value.dump(1);
}

absl::StatusOr<LoadedCheckpoint> CheckpointFromJson(const std::string& text) {
  return Parse<LoadedCheckpoint>(text, [](const json& value) {
    LoadedCheckpoint loaded{.identity = IdentityOf(value), .site = {}, .trainer_path = ""};
    loaded.site.facts = {.step = value.at("step"),
                         .trained = AmountFromJson(value.at("trained")),
                         .sites = value.at("sites"),
                         .fragments = {}};
    for (const json& fragment : value.at("fragments")) {
      loaded.site.facts.fragments.push_back(FactsFromJson(fragment));
      loaded.site.arrays.push_back(ArraysFromJson(fragment));
      loaded.outer_momentum.push_back(fragment.value("outer_momentum", 0.0f));
    }
    loaded.site.chunks.resize(loaded.site.arrays.size());
    return loaded;
  });
}

std::string IdentityToJson(const CheckpointIdentity& identity) { return Identity(identity).dump(1); }

absl::StatusOr<CheckpointIdentity> IdentityFromJson(const std::string& text) {
  return Parse<CheckpointIdentity>(text, [](const json& value) { return IdentityOf(value); });
}

}  // namespace causeway::worker
