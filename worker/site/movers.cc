#include "worker/site/movers.h"

#include <spdlog/spdlog.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/value_place.h"
#include "worker/site/site_state.h"

namespace causeway::worker {
namespace {

using core::FragmentId;
using replica::ChosenCodecs;
using replica::Movement;

// INVALID_ARGUMENT if a number belongs to no codec that this program knows.
absl::StatusOr<ChosenCodecs> CodecsOf(const transport::DownloadHeader& header) {
  const ChosenCodecs codecs{core::CodecFromNumber(header.codec), core::CodecFromNumber(header.up_codec)};
  if ((header.codec == 0 || codecs.down) && (header.up_codec == 0 || codecs.up)) return codecs;
  return absl::InvalidArgumentError(
      absl::StrCat("expected numbers of codecs, got ", header.codec, " and ", header.up_codec));
}

// All codecs that a contribution may have, beginning with the initial one.
std::vector<core::CodecId> CodecsUp(const core::RunConfig& config) {
  std::vector<core::CodecId> codecs = {config.codec.up};
  codecs.insert(codecs.end(), config.codec.allow_up.begin(), config.codec.allow_up.end());
  if (!config.codec.exempt.empty()) codecs.push_back(core::CodecId::kBfloat16);
  return codecs;
}

// Whether the encoder lacked memory; warns the first time.
bool LacksMemory(const absl::Status& status, std::atomic<bool>& warned) {
  if (!absl::IsResourceExhausted(status)) return false;
  if (!warned.exchange(true)) {
    spdlog::warn("contributions are encoded on the host while the device lacks memory: {}",
                 std::string(status.message()));
  }
  return true;
}

// Those of the replica's version, or of one that it is to have.
void UseCodecs(const core::RunSettings& settings, core::Version version, replica::Replica& replica) {
  const FragmentId p = replica.fragment().id;
  replica.Use(settings.AtVersion(p, version).codec, settings.AtVersion(p, version + 1).codec);
}

// Feedback may have begun or ended during the run: the codecs of the newest version whose contribution the checkpoint's
// residual fits.
void UseCodecsOf(const core::RunSettings& settings, const SiteCheckpoint& checkpoint, replica::Replica& replica) {
  const FragmentId p = replica.fragment().id;
  core::Version version = checkpoint.facts.fragments[p].version;
  const bool feeds_back = !checkpoint.arrays[p].residual.empty();
  const auto fits = [&](core::Version one) { return (settings.AtVersion(p, one).codec.feedback_up > 0) == feeds_back; };
  while (version > 0 && settings.revision() > 0 && !fits(version)) --version;
  UseCodecs(settings, version, replica);
}

}  // namespace

Movers::Movers(const core::FragmentMap& map, const core::RunSettings& settings, replica::ParameterStore* store,
               MoverListener* listener)
    : map_(map),
      settings_(settings),
      alpha_(settings.first().sync.fragment_update_alpha),
      store_(store),
      listener_(listener) {
  const core::RunConfig& config = settings.first();
  for (const core::Fragment& fragment : map.fragments()) {
    ranges_.push_back(replica::RangesOf(fragment));
    std::vector<core::DType> dtypes;
    for (const core::TensorPlace& place : fragment.tensors) dtypes.push_back(store->dtype(place.tensor));
    replicas_.push_back(std::make_unique<replica::Replica>(map, fragment.id, config, &pool_, std::move(dtypes)));
    staging_.emplace_back();
    kept_.emplace_back();
  }
  if (store->encoder() != nullptr && store->encoder()->Takes(CodecsUp(config))) encoder_ = store->encoder();
}

// ---- The step thread ----

void Movers::ReadTheta(FragmentId p) {
  GiveUp(p);  // the copy of an earlier contribution
  if (encoder_ != nullptr) {
    const absl::StatusOr<int64_t> ticket = encoder_->BeginKeep(ranges_[p]);
    if (ticket.ok()) {
      kept_[p] = *ticket;
      copies_.Post([this, p] { listener_->OnCopied(p); });
      return;
    }
    if (!LacksMemory(ticket.status(), lacked_memory_)) return listener_->OnMoverFailed(ticket.status());
  }
  staging_[p] = pool_.Take(map_.fragment(p).padded_values());
  const int64_t ticket = store_->BeginRead(ranges_[p], staging_[p].values());
  copies_.Post([this, p, ticket] {
    const absl::Status copied = store_->AwaitRead(ticket);
    if (!copied.ok()) return listener_->OnMoverFailed(copied);
    listener_->OnCopied(p);
  });
}

void Movers::GiveUp(FragmentId p) {
  staging_[p].Reset();
  if (kept_[p]) encoder_->End(*kept_[p]);
  kept_[p].reset();
}

absl::Status Movers::MoveTheta(const action::MoveTheta& move) {
  replica::Replica& replica = *replicas_[move.fragment];
  const replica::UnitRanges& ranges = ranges_[move.fragment];
  switch (move.how) {
    case action::MoveTheta::How::kMix:
      return store_->Move(ranges, Movement::Mix(alpha_, replica.anchor(), replica.Arrays().anchor_stamp));
    case action::MoveTheta::How::kSet:
      return store_->Move(ranges, Movement::Mix(0, replica.anchor(), replica.Arrays().anchor_stamp));
    case action::MoveTheta::How::kStep:
      RETURN_IF_ERROR(store_->Move(ranges, Movement::Step(replica.step().lr, replica.step().values)));
      replica.ReleaseStep();
      return absl::OkStatus();
    case action::MoveTheta::How::kAnchor:
      RETURN_IF_ERROR(store_->Move(ranges, Movement::Step(1, replica.anchor())));
      replica.CommitAnchor(/*keep_residual=*/true);
      return store_->Move(ranges, Movement::Step(-1, replica.anchor()));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Movers::OfferInitial(FragmentId p) {
  core::Buffer theta = pool_.Take(map_.fragment(p).padded_values());
  RETURN_IF_ERROR(store_->Read(ranges_[p], theta.values()));
  replicas_[p]->SetInitial(theta.values());
  return replicas_[p]->Held().held.anchor_digest;
}

absl::StatusOr<Chunks> Movers::EncodeInitial(FragmentId p) {
  core::Buffer theta = pool_.Take(map_.fragment(p).padded_values());
  RETURN_IF_ERROR(store_->Read(ranges_[p], theta.values()));
  absl::StatusOr<std::vector<core::Bytes>> chunks = replicas_[p]->EncodeInitial(theta.values());
  if (!chunks.ok()) return core::WithCode(absl::StatusCode::kDataLoss, chunks.status());
  return std::make_shared<const std::vector<core::Bytes>>(*std::move(chunks));
}

// ---- The task thread ----

void Movers::Encode(FragmentId p) {
  tasks_.Post([this, p] {
    const char* where = kept_[p] ? "device" : "host";
    absl::StatusOr<std::vector<core::Bytes>> chunks = EncodeCopied(p, &where);
    GiveUp(p);
    if (!chunks.ok()) return listener_->OnMoverFailed(core::WithCode(absl::StatusCode::kDataLoss, chunks.status()));
    listener_->OnEncoded(p, std::make_shared<const std::vector<core::Bytes>>(*std::move(chunks)), where);
  });
}

absl::StatusOr<std::vector<core::Bytes>> Movers::EncodeCopied(FragmentId p, const char** where) {
  UseCodecs(settings_, replicas_[p]->version(), *replicas_[p]);
  if (kept_[p]) {
    absl::StatusOr<std::vector<core::Bytes>> chunks = replicas_[p]->EncodeKept(*encoder_, *kept_[p]);
    if (chunks.ok() || !LacksMemory(chunks.status(), lacked_memory_)) return chunks;
    *where = "host";
    staging_[p] = pool_.Take(map_.fragment(p).padded_values());
    RETURN_IF_ERROR(encoder_->Read(*kept_[p], staging_[p].values()));
  }
  return replicas_[p]->EncodeContribution(staging_[p].values());
}

void Movers::Resolve(const action::Resolve& resolve) {
  tasks_.Post([this, resolve] { replicas_[resolve.fragment]->Resolve(resolve.merged); });
}

void Movers::ForgetResidual(FragmentId p) {
  tasks_.Post([this, p] { replicas_[p]->ForgetResidual(); });
}

void Movers::PlaceAnchor(const action::PlaceAnchor& place, std::shared_ptr<const Payload> payload) {
  tasks_.Post([this, place, payload = std::move(payload)]() mutable {
    const absl::StatusOr<core::AnchorDigest> placed = Place(place, *payload);
    payload.reset();
    if (!placed.ok()) return listener_->OnMoverFailed(absl::InternalError(placed.status().message()));
    if (!BringAnchor(place.fragment)) return;
    listener_->OnAnchorPlaced(place.fragment, *placed);
  });
}

absl::StatusOr<core::AnchorDigest> Movers::Place(const action::PlaceAnchor& place, const Payload& payload) {
  replica::Replica& replica = *replicas_[place.fragment];
  const transport::DownloadHeader& header = payload.header;
  if (!header.already_held) {
    ASSIGN_OR_RETURN(const ChosenCodecs codecs, CodecsOf(header));
    UseCodecs(settings_, header.version - 1, replica);
    RETURN_IF_ERROR(replica.StageAnchor(header.version, payload.chunks, codecs, payload.digest));
    if (!place.stage) replica.CommitAnchor(/*keep_residual=*/false);
    return core::AnchorDigest{header.version, payload.digest};
  }
  // It is the offered anchor, version 0, whose codec is the config's.
  const uint64_t own = replica.Held().held.anchor_digest;
  if (place.stage || own != payload.digest) {
    return absl::InternalError(absl::StrCat(
        "anchor of fragment ", place.fragment, ": expected that what is held has digest ",
        core::DigestText(payload.digest), ", got ", place.stage ? "no offer of it" : core::DigestText(own)));
  }
  return core::AnchorDigest{header.version, own};
}

bool Movers::BringAnchor(FragmentId p) {
  if (encoder_ == nullptr) return true;
  const replica::Replica& replica = *replicas_[p];
  const absl::Status brought = encoder_->TakeAnchor(ranges_[p], replica.anchor(), replica.Arrays().anchor_stamp);
  if (brought.ok() || LacksMemory(brought, lacked_memory_)) return true;
  listener_->OnMoverFailed(brought);
  return false;
}

void Movers::TakeUpdate(const action::TakeUpdate& take, std::shared_ptr<const Payload> payload) {
  tasks_.Post([this, take, payload = std::move(payload)]() mutable {
    const absl::StatusOr<core::AnchorDigest> taken = Take(take, *payload);
    const uint64_t expected = payload->digest;
    payload.reset();
    if (!taken.ok()) return listener_->OnMoverFailed(absl::InternalError(taken.status().message()));
    if (!BringAnchor(take.fragment)) return;
    std::string mismatch;
    if (taken->digest != expected) {
      mismatch = absl::StrCat("version ", taken->version, ": digest ", core::DigestText(taken->digest),
                              " differs from the coordinator's ", core::DigestText(expected));
    }
    listener_->OnUpdateTaken(take.fragment, *taken, mismatch);
  });
}

absl::StatusOr<core::AnchorDigest> Movers::Take(const action::TakeUpdate& take, const Payload& payload) {
  replica::Replica& replica = *replicas_[take.fragment];
  ASSIGN_OR_RETURN(const ChosenCodecs codecs, CodecsOf(payload.header));
  UseCodecs(settings_, replica.version(), replica);
  RETURN_IF_ERROR(replica.TakeUpdate(payload.header.outer, payload.chunks, codecs, take.keep_step));
  if (take.resolve) replica.Resolve(*take.resolve);
  return core::AnchorDigest{replica.version(), replica.Held().held.anchor_digest};
}

// While the site trains, W changes only on the task thread, so a copy made there has whole versions.
void Movers::PostAnchorCopy(std::function<void(AnchorCopy)> take) {
  tasks_.Post([this, take = std::move(take)] { take(CopyAnchors()); });
}

AnchorCopy Movers::CopyAnchors() const {
  AnchorCopy copy;
  copy.tensors.resize(map_.manifest().size());
  for (const auto& replica : replicas_) {
    copy.versions.push_back(replica->version());
    for (const core::TensorPlace& place : replica->fragment().tensors) {
      const std::span<const float> values = replica::PartOf(replica->anchor(), place);
      std::vector<float>& tensor = copy.tensors[place.tensor];
      tensor.resize(static_cast<size_t>(map_.manifest()[place.tensor].NumValues()));
      std::ranges::copy(values, tensor.begin() + place.begin_unit * core::kUnitValues);
    }
  }
  return copy;
}

void Movers::PostHoldings(std::function<void(std::vector<core::HeldFragment>)> show) {
  tasks_.Post([this, show = std::move(show)] {
    std::vector<core::HeldFragment> held;
    for (const auto& replica : replicas_) {
      held.push_back(replica->Held());
    }
    show(held);
  });
}

void Movers::PostHeld(FragmentId p, std::function<void(transport::HeldValues)> send) {
  tasks_.Post([this, p, send = std::move(send)] {
    if (p < 0 || p >= std::ssize(replicas_)) return send({});
    send(HeldValuesOf(replicas_[p]->version(), replicas_[p]->Arrays()));
  });
}

void Movers::Finish() {
  copies_.Finish();
  tasks_.Finish();
}

// ---- Between tasks ----

absl::Status Movers::Restore(const SiteCheckpoint& checkpoint) {
  if (checkpoint.arrays.size() != replicas_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", checkpoint.arrays.size(), " fragments, the run has ", replicas_.size()));
  }
  for (size_t p = 0; p < replicas_.size(); ++p) {
    UseCodecsOf(settings_, checkpoint, *replicas_[p]);
    RETURN_IF_ERROR(replicas_[p]->Restore(checkpoint.facts.fragments[p].version, checkpoint.arrays[p]));
  }
  return absl::OkStatus();
}

std::vector<replica::ReplicaArrays> Movers::Arrays() const {
  std::vector<replica::ReplicaArrays> arrays;
  for (const auto& replica : replicas_) arrays.push_back(replica->Arrays());
  return arrays;
}

double Movers::ResidualNorm() const {
  double norm = 0;
  for (const auto& replica : replicas_) norm = std::hypot(norm, replica->ResidualNorm());
  return norm;
}

void Movers::FreeSpareMemory() {
  pool_.Trim();
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace causeway::worker
