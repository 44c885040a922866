#include "worker/ranks/gloo_wire.h"

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/mutex.h"

namespace causeway::worker {
namespace {

using gloo::transport::UnboundBuffer;

constexpr uint64_t kReasonTag = ~uint64_t{0};
constexpr size_t kReasonBytes = 512;
// Transfers are ended by Abort, not by Gloo's timeout, after which all its connections are closed silently.
constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24 * 365);
constexpr std::chrono::milliseconds kForReasons = std::chrono::seconds(1);

// A rank sends the reason for giving up before its connections close. Thread-safe.
class Reasons {
 public:
  explicit Reasons(gloo::Context& mesh) : reasons_(mesh.size) {
    for (int other = 0; other < mesh.size; ++other) {
      if (other == mesh.rank) continue;
      Reason& reason = reasons_[other];
      reason.buffer = mesh.createUnboundBuffer(reason.text.data(), reason.text.size());
      try {
        reason.buffer->recv(other, kReasonTag);
      } catch (const std::exception&) {
        reason.buffer = nullptr;  // it has ended already: the first transfer will report it
      }
    }
  }

  // A reason that has arrived, from any rank; `ended` has closed its connection, and its own may be in flight. "":
  // none.
  std::string Find(int ended) {
    core::MutexLock lock(mutex_);
    for (size_t rank = 0; rank < reasons_.size(); ++rank) {
      Reason& reason = reasons_[rank];
      if (reason.buffer == nullptr) continue;
      try {
        // Once one has failed, Gloo closes the others; messages that have arrived can still be read.
        const std::chrono::milliseconds wait(static_cast<int>(rank) == ended ? 100 : 0);
        if (reason.buffer->waitRecv(wait)) return reason.text.data();
      } catch (const std::exception&) {
        continue;
      }
    }
    return "";
  }

 private:
  struct Reason {
    std::array<char, kReasonBytes> text = {};
    std::unique_ptr<UnboundBuffer> buffer;
  };

  core::Mutex mutex_;
  std::vector<Reason> reasons_ ABSL_GUARDED_BY(mutex_);
};

class GlooWire final : public Wire {
 public:
  GlooWire(std::shared_ptr<gloo::Context> mesh, std::vector<std::string> hosts)
      : mesh_(std::move(mesh)), hosts_(std::move(hosts)), reasons_(*mesh_) {}

  ~GlooWire() override { Close(); }

  int rank() const override { return mesh_->rank; }
  int world() const override { return mesh_->size; }
  const std::string& host(int rank) const override { return hosts_[rank]; }

  std::unique_ptr<Transfer> Send(int to, uint64_t tag, std::span<const std::byte> bytes) override {
    return std::make_unique<GlooTransfer>(*this, to, /*sends=*/true, tag, const_cast<std::byte*>(bytes.data()),
                                          bytes.size());
  }
  std::unique_ptr<Transfer> Receive(int from, uint64_t tag, std::span<std::byte> bytes) override {
    return std::make_unique<GlooTransfer>(*this, from, /*sends=*/false, tag, bytes.data(), bytes.size());
  }

  void Abort(const std::string& reason) override {
    {
      core::MutexLock lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = absl::AbortedError(reason);
      for (UnboundBuffer* const buffer : live_) {
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
      }
    }
    std::array<char, kReasonBytes> text = {};
    reason.copy(text.data(), text.size() - 1);
    for (int other = 0; other < world(); ++other) {
      if (other == rank()) continue;
      try {
        const auto buffer = mesh_->createUnboundBuffer(text.data(), text.size());
        buffer->send(other, kReasonTag);
        buffer->waitSend(kForReasons);
      } catch (const std::exception&) {
        continue;  // it is gone, or hangs
      }
    }
    Close();
  }

 private:
  class GlooTransfer final : public Transfer {
   public:
    GlooTransfer(GlooWire& wire, int other, bool sends, uint64_t tag, std::byte* bytes, size_t size)
        : wire_(wire), other_(other), sends_(sends), buffer_(wire.mesh_->createUnboundBuffer(bytes, size)) {
      core::MutexLock lock(wire_.mutex_);
      wire_.live_.insert(buffer_.get());
      if (!wire_.failure_.ok()) return;
      try {
        if (sends) {
          buffer_->send(other, tag);
        } else {
          buffer_->recv(other, tag);
        }
      } catch (const std::exception&) {
        failed_ = true;
      }
    }

    ~GlooTransfer() override {
      core::MutexLock lock(wire_.mutex_);
      wire_.live_.erase(buffer_.get());
    }

    absl::Status Await() override {
      {
        core::MutexLock lock(wire_.mutex_);
        if (!wire_.failure_.ok()) return wire_.failure_;
      }
      if (failed_) return wire_.WhyEnded(other_);
      try {
        if (sends_ ? buffer_->waitSend(kForEver) : buffer_->waitRecv(kForEver)) return absl::OkStatus();
      } catch (const std::exception&) {
        return wire_.WhyEnded(other_);
      }
      core::MutexLock lock(wire_.mutex_);
      return wire_.failure_;
    }

   private:
    GlooWire& wire_;
    const int other_;
    const bool sends_;
    const std::unique_ptr<UnboundBuffer> buffer_;
    bool failed_ = false;
  };

  absl::Status WhyEnded(int other) {
    {
      core::MutexLock lock(mutex_);
      if (!failure_.ok()) return failure_;
    }
    const std::string reason = reasons_.Find(other);
    return reason.empty() ? absl::UnavailableError(NameOf(other) + " has ended") : absl::AbortedError(reason);
  }

  void Close() {
    try {
      mesh_->closeConnections();
    } catch (const std::exception&) {
      return;
    }
  }

  const std::shared_ptr<gloo::Context> mesh_;
  const std::vector<std::string> hosts_;
  Reasons reasons_;
  core::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::set<UnboundBuffer*> live_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::shared_ptr<Wire>> ConnectByGloo(const GlooOptions& options, const ExchangeContacts& exchange) {
  std::signal(SIGPIPE, SIG_IGN);  // Gloo writes to connections that the other end has closed
  ASSIGN_OR_RETURN(GlooMesh mesh, ConnectMesh(options, exchange));
  return std::make_shared<GlooWire>(std::move(mesh.context), std::move(mesh.hosts));
}

}  // namespace causeway::worker
