#include "server/run/run_codecs.h"

#include "absl/strings/str_cat.h"

namespace causeway::server {
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
