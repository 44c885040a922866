#include "worker/ranks/gloo_wire.h"

#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <exception>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/text.h"

namespace causeway::worker {
namespace {

using std::chrono::milliseconds;

constexpr int kAttempts = 10;
constexpr milliseconds kToConnectEach{100};  // the others, one after another
constexpr uint64_t kProofTag = ~uint64_t{1};
constexpr size_t kProofBytes = 32;
constexpr const char* kHere = "here";
constexpr const char* kConnected = "connected";

// Addresses for the ranks 0, 1, …, after a number of this attempt, each as "<size> <bytes>".
void Append(std::string_view field, std::string& list) {
  absl::StrAppend(&list, field.size(), " ", std::string(field));
}

std::string FieldOf(const std::string& list, int index) {
  size_t begin = 0;
  for (int i = 0;; ++i) {
    const size_t space = list.find(' ', begin);
    size_t size = 0;
    if (space == std::string::npos || !absl::SimpleAtoi(list.substr(begin, space - begin), &size)) return "";
    if (i == index) return list.substr(space + 1, size);
    begin = space + 1 + size;
  }
}

milliseconds ToProve(const GlooOptions& options) { return milliseconds(static_cast<int64_t>(options.prove_s * 1000)); }

class Mesh final : public gloo::Context {
 public:
  Mesh(int rank, int world, std::shared_ptr<gloo::transport::Device> device, milliseconds to_connect)
      : gloo::Context(rank, world) {
    device_ = std::move(device);
    transportContext_ = device_->createContext(rank, world);
    transportContext_->setTimeout(to_connect / 5);  // a pair waits five times as long for its connection
  }

  ~Mesh() override {
    try {
      closeConnections();
    } catch (const std::exception&) {
      return;
    }
  }

  // Throws.
  std::string Listen() {
    std::string addresses;
    Append(NewNonce(), addresses);
    for (int other = 0; other < size; ++other) {
      const std::vector<char> address =
          other == rank ? std::vector<char>() : transportContext_->createPair(other)->address().bytes();
      Append({address.data(), address.size()}, addresses);
    }
    return addresses;
  }

  void Connect(int other, const std::string& address) {
    transportContext_->getPair(other)->connect(std::vector<char>(address.begin(), address.end()));
  }
};

// Both ends of a pair prove the key, each in its own direction.
class PairProof {
 public:
  PairProof(Mesh& mesh, int other, const RankKey& key, const std::string& challenge) {
    const std::string own = key.Prove(Role(mesh.rank, other), challenge);
    expected_ = key.Prove(Role(other, mesh.rank), challenge);
    own.copy(sent_.data(), sent_.size());
    out_ = mesh.createUnboundBuffer(sent_.data(), sent_.size());
    in_ = mesh.createUnboundBuffer(received_.data(), received_.size());
    in_->recv(other, kProofTag);
    out_->send(other, kProofTag);
  }

  bool Await(core::Clock::TimePoint until) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - core::SystemClock().Now());
    return in_->waitRecv(std::max(left, milliseconds(1))) && out_->waitSend(std::max(left, milliseconds(1))) &&
           std::string(received_.data(), received_.size()) == expected_;
  }

 private:
  static std::string Role(int from, int to) { return absl::StrCat("rank ", from, " to ", to); }

  std::array<char, kProofBytes> sent_ = {}, received_ = {};
  std::string expected_;
  std::unique_ptr<gloo::transport::UnboundBuffer> out_, in_;
};

// "" or which connection is not the other rank's, and why.
std::string ConnectAll(Mesh& mesh, const GlooOptions& options, const std::vector<RankContact>& all) {
  std::string challenge;
  for (const RankContact& one : all) challenge += FieldOf(one.addresses, 0);
  const auto failed = [&](int other, const std::string& why) {
    return absl::StrCat("rank ", options.rank, " (", options.host, ") and rank ", other, " (", all[other].host,
                        ") do not reach each other: ", why);
  };
  for (int other = 0; other < options.world; ++other) {
    if (other == options.rank) continue;
    try {
      mesh.Connect(other, FieldOf(all[other].addresses, 1 + options.rank));
    } catch (const std::exception& error) {
      return failed(other, error.what());
    }
  }
  std::map<int, std::unique_ptr<PairProof>> proofs;
  const auto until = core::SystemClock().Now() + ToProve(options);
  for (int other = 0; other < options.world; ++other) {
    if (other == options.rank) continue;
    try {
      proofs[other] = std::make_unique<PairProof>(mesh, other, options.key, challenge);
    } catch (const std::exception& error) {
      return failed(other, error.what());
    }
  }
  for (const auto& [other, proof] : proofs) {
    try {
      if (!proof->Await(until)) return failed(other, "what has connected does not know the ranks' key");
    } catch (const std::exception&) {
      return failed(other, absl::StrCat("what has connected ended, or said nothing for ", options.prove_s,
                                        " s: is it a stranger?"));
    }
  }
  return "";
}

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

absl::StatusOr<GlooMesh> ConnectMesh(const GlooOptions& options, const ExchangeContacts& exchange) {
  RETURN_IF_ERROR(exchange({options.host, kHere}).status());
  std::string failure;
  for (int attempt = 1; attempt <= kAttempts; ++attempt) {
    std::shared_ptr<Mesh> mesh;
    std::string addresses;
    try {
      gloo::transport::tcp::attr attributes;
      attributes.hostname = options.address;
      mesh = std::make_shared<Mesh>(options.rank, options.world, gloo::transport::tcp::CreateDevice(attributes),
                                    ToProve(options) + options.world * kToConnectEach);
      addresses = mesh->Listen();
    } catch (const std::exception& error) {
      return absl::UnavailableError(absl::StrCat("Gloo cannot listen on ", options.address, ": ", error.what()));
    }
    ASSIGN_OR_RETURN(const std::vector<RankContact> all, exchange({options.host, addresses}));
    const std::string own = ConnectAll(*mesh, options, all);
    ASSIGN_OR_RETURN(const std::vector<RankContact> said, exchange({options.host, own.empty() ? kConnected : own}));
    failure.clear();
    for (const RankContact& one : said) {
      if (failure.empty() && one.addresses != kConnected) failure = core::InOneLine(one.addresses);
    }
    if (failure.empty()) {
      GlooMesh made{std::move(mesh), {}};
      for (const RankContact& one : all) made.hosts.push_back(one.host);
      return made;
    }
    spdlog::warn("{}; the ranks' connections are made anew, attempt {} of {}", failure, attempt, kAttempts);
  }
  return absl::UnavailableError(failure);
}

absl::StatusOr<std::shared_ptr<Wire>> ConnectByGloo(const GlooOptions& options, const ExchangeContacts& exchange) {
  std::signal(SIGPIPE, SIG_IGN);  // Gloo writes to connections that the other end has closed
  ASSIGN_OR_RETURN(GlooMesh mesh, ConnectMesh(options, exchange));
  return std::make_shared<GlooWire>(std::move(mesh.context), std::move(mesh.hosts));
}

}  // namespace causeway::worker
