#include "server/run/run_model.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "transport/messages.h"

namespace causeway::server {

bool RunModel::Declare(const core::FragmentMap& map, const core::SiteId& site, Ready& ready) {
  const uint64_t withdrawn = fact_.generation();
  if (!fact_.Declare(map)) return false;
  if (withdrawn > 0) {
    ready.Note(
        "withdrawn", site, -1,
        absl::StrCat("generation ", withdrawn, " of the model: no site is left of it, and another one is brought"));
  }
  ready.Note("model", site, -1,
             absl::StrCat("generation ", fact_.generation(), ": ", core::NumParameters(map.manifest()),
                          " parameters in ", map.num_fragments(), " fragments"));
  return true;
}

void RunModel::Store(Ready& ready) const {
  ready.entry.model =
      ModelRecord{.generation = fact_.generation(), .run = RunRecordOf(fact_.map()), .seeder = fact_.seeder()};
}

void RunModel::Begin(Ready& ready) {
  const core::FragmentMap& map = fact_.map();
  welcome_.Clear();
  welcome_.set_generation(fact_.generation());
  transport::ToProto(map.manifest(), welcome_.mutable_manifest());
  transport::ToProto(map, welcome_.mutable_fragments());
  const auto merge = [this](core::FragmentId fragment, core::Version base) {
    const core::RunConfig& config = settings_.AtVersion(fragment, base);
    return MergeSettings{.outer = config.outer,
                         .down = codecs::DownLeg(config),
                         .feedback_down = config.codec.feedback_down,
                         .zstd = config.codec.zstd,
                         .rule = config.membership.merge};
  };
  parameters_ =
      std::make_shared<Parameters>(ParametersOptions{.map = map,
                                                     .generation = fact_.generation(),
                                                     .waiters = waiters_,
                                                     .merge = merge,
                                                     .snapshot_every = settings_.first().checkpoint.every_rounds,
                                                     .journal = &journal_,
                                                     .merged = listeners_.merged,
                                                     .failed = listeners_.failed});
  ready.effects.emplace_back(effect::NewGeneration{waiters_, fact_.generation()});
}

void RunModel::Describe(v1::RunDescription& description) const {
  if (!fact_.known()) return;
  const core::FragmentMap& map = fact_.map();
  transport::ToProto(map.manifest(), description.mutable_manifest());
  transport::ToProto(map, description.mutable_fragments());
  if (!parameters_->is_set()) return;
  for (int p = 0; p < map.num_fragments(); ++p) description.add_versions(parameters_->Committed(p).version);
}

absl::Status RunModel::BeginDownload(const v1::DownloadRequest& request, Waiter waiter, Download& download) const {
  RETURN_IF_ERROR(fact_.CheckGeneration(GenerationOf(request)));
  if (request.fragment() < 0 || request.fragment() >= fact_.map().num_fragments()) {
    return absl::InvalidArgumentError(absl::StrCat("expected one of ", fact_.map().num_fragments(),
                                                   " fragments of the run, got ", request.fragment()));
  }
  download.generation = fact_.generation();
  if (request.source_case() == v1::DownloadRequest::kUpdateBase) {
    ASSIGN_OR_RETURN(download.source, parameters_->UpdateSource(request.fragment(), request.update_base()));
  } else {
    ASSIGN_OR_RETURN(download.source, parameters_->AnchorSource(request.fragment(), request.anchor_version(),
                                                                request.held_digest(), std::move(waiter)));
  }
  return absl::OkStatus();
}

void RunModel::MergeAgain(const std::vector<StoredFragment>& fragments, const RunCodecs& codecs) {
  size_t rounds = 0;
  for (size_t p = 0; p < fragments.size(); ++p) {
    for (const StoredRound& round : fragments[p].to_replay) {
      parameters_->Merge({.round = round.record,
                          .contributions = {},
                          .load = [this, fragment = fact_.map().fragment(static_cast<core::FragmentId>(p)),
                                   leg = codecs.UpLeg(round.record), contributions = round.contributions] {
                            return ReadContributions(fragment, leg, contributions);
                          }});
      ++rounds;
    }
  }
  spdlog::info("merges {} rounds since the last snapshots again", rounds);
}

absl::StatusOr<Contributions> RunModel::ReadContributions(const core::Fragment& fragment, const codecs::LegCodec& leg,
                                                          const std::vector<StoredContribution>& stored) const {
  const auto plan = codecs::PlanChunks(fragment, leg);
  Contributions contributions;
  for (const StoredContribution& one : stored) {
    auto contribution = std::make_shared<Contribution>(plan);
    for (size_t i = 0; i < one.extent.chunk_bytes.size(); ++i) {
      absl::StatusOr<std::string> chunk = journal_.ReadChunk(one.extent, i);
      absl::Status status = chunk.ok() ? contribution->Add(*std::move(chunk)) : chunk.status();
      if (!status.ok()) {
        return absl::DataLossError(absl::StrCat("segment ", one.extent.segment, ": contribution of ", one.site,
                                                " to fragment ", fragment.id, ": ", std::string(status.message())));
      }
    }
    if (!contribution->complete()) {
      return absl::DataLossError(absl::StrCat("segment ", one.extent.segment, ": the contribution of ", one.site,
                                              " to fragment ", fragment.id, " is not whole"));
    }
    contributions.push_back(std::move(contribution));
  }
  return contributions;
}

// ---- Codecs ----

namespace {

// Sets `choice` to the allowed codecs, each with its bytes a round; leaves it empty where none are listed.
void MakeChoice(const core::FragmentMap& map, const codecs::LegCodec& leg, const std::vector<core::CodecId>& allowed,
                std::optional<CodecChoice>& choice) {
  std::vector<CodecOption> options;
  for (core::CodecId codec : allowed) {
    CodecOption& option = options.emplace_back(CodecOption{codec});
    for (const core::Fragment& fragment : map.fragments()) {
      option.round_bytes += codecs::EncodedBytes(fragment, leg.With(codec));
    }
  }
  choice.reset();
  if (!options.empty()) choice.emplace(std::move(options));
}

}  // namespace

void RunCodecs::SetMap(const core::FragmentMap& map) {
  up_.assign(map.num_fragments(), config_.codec.up);
  MakeChoice(map, codecs::UpLeg(config_), config_.codec.allow_up, choose_up_);
  if (config_.codec.chooses_down()) {
    MakeChoice(map, codecs::DownLeg(config_), config_.codec.allow_down, choose_down_);
  }
}

void RunCodecs::Restore(core::FragmentId fragment, core::Version version, std::optional<core::CodecId> up) {
  up_[fragment] = up.value_or(settings_.AtVersion(fragment, version).codec.up);
}

codecs::LegCodec RunCodecs::UpLeg(const RoundRecord& round) const {
  return codecs::UpLeg(config_).With(round.codecs ? round.codecs->up : config_.codec.up);
}

std::optional<RoundCodecs> RunCodecs::Decide(core::FragmentId fragment, core::Version base,
                                             const std::vector<core::SiteId>& active, int64_t contributions) {
  const bool sparse = config_.codec.sparse_down();
  if (!choose_up_ && !choose_down_ && !sparse && settings_.revision() == 0) return std::nullopt;
  const double round_s = static_cast<double>(config_.sync.sync_every) * speeds_.StepS(active);
  const auto choose = [&](const char* name, std::optional<CodecChoice>& choice, SiteSpeeds::Leg leg) {
    if (!choice) return;
    const core::CodecId before = choice->codec();
    if (!choice->Choose({speeds_.SlowestLink(active, leg), round_s})) return;
    changes_.push_back(absl::StrCat(name, ": after ", core::CodecName(before), " ", choice->reason()));
  };
  choose("up", choose_up_, SiteSpeeds::Leg::kUp);
  choose("down", choose_down_, SiteSpeeds::Leg::kDown);
  core::CodecId down = settings_.AtVersion(fragment, base).codec.down;
  if (sparse) {
    down = core::SparseDown(up_[fragment], contributions);
    if (contributions > 0) {  // none: a rollback
      sparse_down_ = down;
      sparse_reason_ = absl::StrCat(core::CodecName(down), ", sparse: for ", contributions, " of ",
                                    core::CodecName(up_[fragment]), " in the last round");
    }
  }
  if (choose_down_) down = choose_down_->codec();
  const core::CodecId next_up = settings_.AtVersion(fragment, base + 1).codec.up;
  const RoundCodecs codecs{.up = up_[fragment], .down = down, .next_up = choose_up_ ? choose_up_->codec() : next_up};
  up_[fragment] = codecs.next_up;
  return codecs;
}

core::CodecId RunCodecs::down() const {
  return choose_down_ ? choose_down_->codec() : sparse_down_.value_or(settings_.newest().codec.down);
}

std::set<core::CodecId> RunCodecs::all() const {
  std::set<core::CodecId> all = {config_.codec.up, config_.codec.down, up(), down()};
  all.insert(config_.codec.allow_up.begin(), config_.codec.allow_up.end());
  all.insert(config_.codec.allow_down.begin(), config_.codec.allow_down.end());
  return all;
}

}  // namespace causeway::server
