#include "transport/transfer.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "core/text.h"
#include "transport/messages.h"

namespace causeway::transport {
namespace {

// How often a chunk that the coordinator finds damaged is sent again before the contribution is given up: one damaged
// by chance is right the next time, one that we damaged ourselves never is.
constexpr int kDamagedAttempts = 3;

// An upload's chunk is damaged, or a download cannot be sent.
bool IsRefused(const grpc::Status& status) { return status.error_code() == grpc::StatusCode::INVALID_ARGUMENT; }

// One broken attempt is not worth a warning; a series of them is worth finding in the log.
spdlog::level::level_enum LevelOf(int attempts) {
  constexpr int kQuietAttempts = 5;
  return attempts < kQuietAttempts ? spdlog::level::debug : spdlog::level::warn;
}

// As many streams as connections, and no more than chunks.
int NumStripes(size_t chunks, const Lanes& lanes) {
  return static_cast<int>(std::clamp<size_t>(chunks, 1, lanes.channels));
}

class UploadTransfer final : public Transfer {
 public:
  explicit UploadTransfer(UploadRequest request) : request_(std::move(request)) {}

  bool is_upload() const override { return true; }

  bool Replaces(const Transfer& earlier) const override {
    const auto* other = dynamic_cast<const UploadTransfer*>(&earlier);
    return other != nullptr && request_.initial && other->request_.initial &&
           request_.fragment == other->request_.fragment;
  }
  void TakePlaceOfEarlier() override { first_attempt_ = false; }  // the coordinator has some of it
  bool IsOfEarlierStay(int64_t welcomed) const override { return request_.stay != 0 && request_.stay < welcomed; }

  void Launch(const Lanes& lanes, const v1::Context& context, std::optional<uint64_t> generation,
              std::function<void()> written, std::function<void(bool)> ended) override {
    const int stripes = NumStripes(request_.chunks->size(), lanes);
    v1::UploadHeader header;
    *header.mutable_context() = context;
    if (request_.stay != 0) header.mutable_context()->set_stay(request_.stay);
    header.set_initial(request_.initial);
    header.set_fragment(request_.fragment);
    header.set_base_version(request_.base);
    header.set_tokens(request_.tokens);
    header.set_steps(request_.steps);
    header.set_num_stripes(stripes);
    header.set_sends_all(std::exchange(first_attempt_, false));
    header.set_wants_beats(true);
    header.set_wants_proof(true);
    if (generation) header.set_generation(*generation);
    {
      core::MutexLock lock(mutex_);
      BeginAttempt(stripes, lanes, std::move(ended));
      begun_ = core::SystemClock().Now();
      sends_all_ = header.sends_all();
      unwritten_ = stripes;
      written_ = std::move(written);
    }
    for (int i = 0; i < stripes; ++i) {
      header.set_stripe(i);
      UploadStream::Events events{
          .missing = [this, i, stripes](const v1::ChunkList& missing) { Missing(i, stripes, missing); },
          .written = [this] { Written(); },
          .ended = [this](const grpc::Status& status,
                          const std::optional<v1::Verdict>& verdict) { Ended(status, verdict); }};
      Add(UploadStream::Start(*lanes.wire, {i, lanes.watch}, header, request_.chunks, *lanes.pacer, std::move(events)));
    }
  }

  void Finish(const absl::Status& status) override { request_.done(status); }

 private:
  std::string What() const override { return absl::StrCat("upload of fragment ", request_.fragment); }

  // Notes the chunks that the coordinator has of a stream: more than before, if the last attempt made progress.
  void Missing(int stripe, int stripes, const v1::ChunkList& missing) {
    core::MutexLock lock(mutex_);
    arrived_.resize(request_.chunks->size());
    for (size_t i = stripe; i < arrived_.size(); i += stripes) {
      if (arrived_[i] || std::ranges::find(missing.chunks(), static_cast<int>(i)) != missing.chunks().end()) continue;
      arrived_[i] = true;
      attempts_ = 0;
    }
  }

  void Written() {
    std::function<void()> written;
    {
      core::MutexLock lock(mutex_);
      if (--unwritten_ == 0) written = std::move(written_);
    }
    if (written) written();
  }

  // The end of one stream. The one that completes the contribution has the verdict.
  void Ended(const grpc::Status& status, const std::optional<v1::Verdict>& verdict) {
    if (verdict) {
      core::MutexLock lock(mutex_);
      verdict_ = verdict;
    }
    StreamEnded(status);
  }

  // Measured if everything was sent; the verdict took a round trip after the last byte.
  void Measure() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!verdict_ || !sends_all_) return;
    int64_t bytes = 0;
    for (const core::Bytes& chunk : *request_.chunks) bytes += static_cast<int64_t>(chunk.size());
    const double seconds = core::SystemClock().SecondsSince(begun_);
    meter_->Moved(LinkMeter::Direction::kUp, bytes, std::max(seconds - meter_->round_trip_s(), seconds / 4));
  }

  bool TakeOutcome() override {
    if (verdict_) {
      if (!request_.initial) proofs_->HasAdmitted(request_.fragment, request_.base, verdict_->proof());
      Finish(verdict_->admitted() ? absl::OkStatus() : absl::FailedPreconditionError(verdict_->reason()));
      return true;
    }
    ++attempts_;
    spdlog::log(LevelOf(attempts_), "upload of fragment {} base {} broke: {}", request_.fragment, request_.base,
                status_.error_message());
    if (!IsRefused(status_) || ++damaged_ < kDamagedAttempts) return false;
    Finish(absl::DataLossError(status_.error_message()));
    return true;
  }

  const UploadRequest request_;
  bool first_attempt_ = true;
  int damaged_ = 0;
  core::Clock::TimePoint begun_ ABSL_GUARDED_BY(mutex_);
  bool sends_all_ ABSL_GUARDED_BY(mutex_) = false;
  int unwritten_ ABSL_GUARDED_BY(mutex_) = 0;  // streams
  std::function<void()> written_ ABSL_GUARDED_BY(mutex_);
  // The attempt's verdict; read without the lock once no stream is running.
  std::optional<v1::Verdict> verdict_;
  std::vector<bool> arrived_;  // chunks that the coordinator is known to have
};

class DownloadTransfer final : public Transfer {
 public:
  explicit DownloadTransfer(DownloadRequest request) : request_(std::move(request)) {}

  bool is_upload() const override { return false; }

  bool Replaces(const Transfer& earlier) const override {
    const auto* other = dynamic_cast<const DownloadTransfer*>(&earlier);
    return other != nullptr && request_.kind == DownloadKind::kAnchor &&
           other->request_.kind == DownloadKind::kAnchor && request_.fragment == other->request_.fragment;
  }

  void Launch(const Lanes& lanes, const v1::Context& context, std::optional<uint64_t> generation, std::function<void()>,
              std::function<void(bool)> ended) override {
    v1::DownloadRequest request;
    *request.mutable_context() = context;
    request.set_fragment(request_.fragment);
    if (request_.kind == DownloadKind::kUpdate) {
      request.set_update_base(request_.version);
      request.set_wants_weights(true);
    } else {
      request.set_anchor_version(request_.version);
    }
    request.set_held_digest(request_.held_digest);
    request.set_wants_run_tokens(true);
    request.set_wants_beats(true);
    request.set_wants_proof(true);
    request.set_revision(request_.revision);
    if (generation) request.set_generation(*generation);
    std::vector<int> held;
    {
      core::MutexLock lock(mutex_);
      // Received chunks are counted per stream, so the number of streams must stay.
      if (stripes_.empty()) stripes_.resize(NumStripes(request_.num_chunks, lanes));
      for (Stripe& stripe : stripes_) {
        stripe.of_version = false;
        held.push_back(stripe.chunks);
      }
      request.set_num_stripes(static_cast<int>(stripes_.size()));
      request.set_held_version(version_);
      BeginAttempt(static_cast<int>(stripes_.size()), lanes, std::move(ended));
      measured_bytes_ = 0;
      first_chunk_.reset();
      header_at_.reset();
      generation_ = generation;
    }
    for (size_t i = 0; i < held.size(); ++i) {
      request.set_stripe(static_cast<int>(i));
      request.set_first_chunk(held[i]);
      DownloadStream::Events events{.chunk = [this, i](std::string chunk) { TakeChunk(i, std::move(chunk)); },
                                    .message = [this, i](const v1::DownloadMessage& m) { TakeMessage(i, m); },
                                    .ended = [this](const grpc::Status& status) { StreamEnded(status); }};
      const Lane lane{static_cast<int>(i) % lanes.channels, lanes.watch};
      Add(DownloadStream::Start(*lanes.wire, lane, request, *lanes.pacer, std::move(events)));
    }
  }

  void Finish(const absl::Status& status) override { request_.done(status, digest_.value_or(0)); }

 private:
  std::string What() const override { return absl::StrCat("download of fragment ", request_.fragment); }

  struct Stripe {
    int chunks = 0;           // held so far
    bool of_version = false;  // its stream sends version_
  };

  void TakeMessage(size_t stripe, const v1::DownloadMessage& message) {
    if (!TakeValid(stripe, message)) Cancel();
  }

  // An anchor may have been replaced by a newer one between two streams: the newest counts, and everything starts over.
  // False: the coordinator sends a payload that cannot be accepted.
  bool TakeValid(size_t stripe, const v1::DownloadMessage& message) {
    core::MutexLock lock(mutex_);
    if (!refused_.ok()) return false;
    attempts_ = 0;
    if (message.has_header()) {
      const DownloadHeader header = FromProto(message.header());
      // The header of another model than requested: nothing is accepted, and the next attempt asks again.
      if (generation_ && header.generation && *header.generation != *generation_) return true;
      refused_ = CheckHeader(header);
      if (!refused_.ok()) return false;
      if (!begun_ || header.version > version_) {
        begun_ = true;
        version_ = header.version;
        num_chunks_ = header.num_chunks;
        digest_.reset();
        for (Stripe& other : stripes_) other = {};
        proofs_->HasVersion(request_.fragment, header.version, message.header().proof());
        request_.on_header(header);
        header_at_ = core::SystemClock().Now();
      }
      stripes_[stripe].of_version = header.version == version_;
    } else if (message.has_end() && stripes_[stripe].of_version) {
      digest_ = message.end().digest();
    }
    return true;
  }

  // Owners size their buffers by this number.
  absl::Status CheckHeader(const DownloadHeader& header) const {
    if (header.num_chunks >= 0 && static_cast<size_t>(header.num_chunks) <= request_.num_chunks) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("download of fragment ", request_.fragment, " version ",
                                                   request_.version, ": expected a header with 0 to ",
                                                   request_.num_chunks, " chunks, got ", header.num_chunks));
  }

  void TakeChunk(size_t stripe, std::string chunk) {
    core::MutexLock lock(mutex_);
    if (!refused_.ok()) return;
    attempts_ = 0;
    if (!stripes_[stripe].of_version) return;
    const int index = static_cast<int>(stripe + stripes_.size() * stripes_[stripe].chunks);
    if (index >= num_chunks_) return;
    ++stripes_[stripe].chunks;
    if (first_chunk_) {
      measured_bytes_ += static_cast<int64_t>(chunk.size());
    } else {
      first_chunk_ = core::SystemClock().Now();
      first_bytes_ = static_cast<int64_t>(chunk.size());
    }
    request_.on_chunk(index, std::move(chunk));
  }

  // Measured from the first chunk on. A payload of one chunk has no such time: it was merged after the header, and then
  // sent.
  void Measure() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!first_chunk_) return;
    if (measured_bytes_ > 0) {
      meter_->Moved(LinkMeter::Direction::kDown, measured_bytes_, core::SystemClock().SecondsSince(*first_chunk_));
    } else if (header_at_) {
      meter_->MovedAtLeast(LinkMeter::Direction::kDown, first_bytes_, core::SystemClock().SecondsSince(*header_at_));
    }
  }

  bool TakeOutcome() override {
    if (!refused_.ok()) {
      Finish(refused_);
      return true;
    }
    int held = 0;
    for (const Stripe& stripe : stripes_) held += stripe.chunks;
    if (digest_ && held == num_chunks_) {
      Finish(absl::OkStatus());
      return true;
    }
    ++attempts_;
    spdlog::log(LevelOf(attempts_), "download of fragment {} version {} broke after {} chunks: {}", request_.fragment,
                request_.version, held, status_.error_message());
    // Pruned, never made, or impossible to send: a retry does not help.
    if (status_.error_code() == grpc::StatusCode::NOT_FOUND) {
      Finish(absl::NotFoundError(status_.error_message()));
    } else if (IsRefused(status_)) {
      Finish(absl::InvalidArgumentError(status_.error_message()));
    } else {
      return false;
    }
    return true;
  }

  const DownloadRequest request_;
  int64_t measured_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<core::Clock::TimePoint> first_chunk_, header_at_ ABSL_GUARDED_BY(mutex_);
  int64_t first_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<uint64_t> generation_ ABSL_GUARDED_BY(mutex_);  // requested by the attempt
  // Also under the lock; read without it once no stream is running.
  std::vector<Stripe> stripes_;
  bool begun_ = false;
  core::Version version_ = 0;  // of the chunks held
  int num_chunks_ = 0;
  absl::Status refused_;  // why no other attempt can help
  std::optional<uint64_t> digest_;
};

}  // namespace

void Transfer::BeginAttempt(int streams, const Lanes& lanes, std::function<void(bool)> ended) {
  running_ = streams;
  meter_ = lanes.meter;
  proofs_ = lanes.proofs;
  ended_ = std::move(ended);
  status_ = grpc::Status::OK;
  broke_at_.reset();
  streams_.clear();
}

void Transfer::Add(const std::shared_ptr<BulkStream>& stream) {
  core::MutexLock lock(mutex_);
  streams_.push_back(stream);
}

void Transfer::Cancel() {
  core::MutexLock lock(mutex_);
  for (const std::weak_ptr<BulkStream>& weak : streams_) {
    if (const auto stream = weak.lock()) stream->Cancel();
  }
}

void Transfer::CancelOn(const std::vector<int>& connections) {
  core::MutexLock lock(mutex_);
  for (const std::weak_ptr<BulkStream>& weak : streams_) {
    const auto stream = weak.lock();
    if (stream != nullptr && std::ranges::count(connections, stream->connection()) > 0) stream->Cancel();
  }
}

void Transfer::Break() {
  if (!broke_at_) broke_at_ = core::SystemClock().Now();
}

std::string Transfer::WhyItBroke() const {
  const int attempts = attempts_;
  const std::string text =
      absl::StrCat(What(), " was ended", attempts > 1 ? absl::StrCat(" ", attempts, " times in a row") : "", ": ",
                   status_.error_message().empty() ? "without a reason" : status_.error_message());
  return core::Clipped(core::InOneLine(text), core::kMaxSiteTextBytes);
}

void Transfer::StreamEnded(const grpc::Status& status) {
  std::function<void(bool)> ended;
  {
    core::MutexLock lock(mutex_);
    if (!status.ok()) Break();
    if (!status.ok() && (status_.ok() || IsRefused(status))) status_ = status;
    if (--running_ > 0) return;
    Break();
    Measure();
    ended = std::move(ended_);
  }
  ended(TakeOutcome());
}

std::shared_ptr<Transfer> MakeUpload(UploadRequest request) {
  return std::make_shared<UploadTransfer>(std::move(request));
}

std::shared_ptr<Transfer> MakeDownload(DownloadRequest request) {
  return std::make_shared<DownloadTransfer>(std::move(request));
}

}  // namespace causeway::transport
