#include "worker/ranks/gloo_mesh.h"

#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
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

}  // namespace causeway::worker
