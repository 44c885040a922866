#include "tests/transport/virtual_link.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "core/run_config.h"
#include "core/thread.h"
#include "transport/messages.h"

namespace causeway::transport {
namespace {

constexpr auto kLongest = std::chrono::hours(6);
const grpc::Status kCut(grpc::StatusCode::UNAVAILABLE, "cut");

core::Manifest ManifestForTest() { return {{"a", {300}, core::TensorKind::kMatrix, 0}}; }

}  // namespace

VirtualLink::VirtualLink(uint64_t seed, LinkOptions options, sim::NetworkOptions network_options)
    : machine(seed), network(&machine, network_options), seed_(seed), options_(std::move(options)) {
  spdlog::set_level(spdlog::level::off);
  options_.coordinator = {.host = "127.0.0.1", .port = 1};
  options_.site = "a";
  hub_ = machine.Begin(kHub, [] {});
  site_ = machine.Begin(kSite, [] {});
  Listen(true);
  v1::Welcome& welcome = coordinator->welcome;
  welcome.set_epoch(1);
  welcome.set_lineage("l");
  welcome.set_stay(1);
  welcome.set_generation(1);
  const auto map = *core::BuildFragmentMap(ManifestForTest(), 1, core::FragmentAssignment::kStrided);
  ToProto(map.manifest(), welcome.mutable_manifest());
  ToProto(map, welcome.mutable_fragments());
  network.Observe([this](const sim::Call& call, bool to_client, const std::string& message) {
    if (observe) observe(call, to_client, message);
    if (call.method != sim::Method::kUpload && call.method != sim::Method::kDownload) return;
    if (++carried_ != cut_after_) return;
    if (cuts_link_) return network.BreakSome(kSite, kHub, 1);
    const std::shared_ptr<sim::End> client = call.client, server = call.server;
    client->Break(kCut);
    server->Break(kCut);
  });
}

VirtualLink::~VirtualLink() { spdlog::set_level(spdlog::level::info); }

void VirtualLink::Run(std::function<void()> body) {
  bool done = false;
  machine.Spawn(site_, [&] {
    body();
    done = true;
    machine.Log("done");
  });
  const core::Clock::TimePoint end = machine.Now() + kLongest;
  while (!done && machine.Now() < end) {
    machine.Run(machine.Now() + std::chrono::seconds(1), 1 << 20, [&] { return done; });
  }
  if (!done) {
    // The threads that wait for each other stay as they are; nothing can be destroyed.
    ADD_FAILURE() << "seed " << seed_ << ": it hangs";
    machine.Kill(*site_);
    link.release();
  }
}

void VirtualLink::RunWelcomed(const std::function<void()>& body) {
  Run([&] {
    Start();
    AwaitWelcome();
    body();
    if (link != nullptr) link->Leave(/*finished=*/false, "the test ends");
    link.reset();
    EXPECT_TRUE(Await([&] { return std::ranges::all_of(sent_, [](const auto& chunks) { return chunks.expired(); }); }))
        << "the chunks of an upload stay";
  });
}

void VirtualLink::Start() {
  link = std::make_unique<GrpcLink>(options_, network.MakeWire(site_, kSite, {kHub}));
  link->Start(ManifestForTest(), &listener);
}

void VirtualLink::Sleep(core::Clock::Duration time) { core::SleepUntil(core::SystemClock().Now() + time); }

bool VirtualLink::Await(const std::function<bool()>& holds, core::Clock::Duration time) {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  for (core::Clock::Duration waited{}; !holds() && waited < time; waited = core::SystemClock().Now() - begin) {
    Sleep(std::chrono::milliseconds(waited < std::chrono::seconds(1) ? 1 : 20));
  }
  return holds();
}

SeenPtr VirtualLink::Upload(core::FragmentId fragment, core::Version base, Payload payload, bool initial) {
  auto seen = std::make_shared<Seen>();
  coordinator->expected[{initial, fragment, base}] = payload;
  const auto chunks = std::make_shared<const std::vector<core::Bytes>>(payload.begin(), payload.end());
  sent_.push_back(chunks);
  link->Upload({.initial = initial,
                .fragment = fragment,
                .base = base,
                .chunks = chunks,
                .done = [seen](const absl::Status& status) {
                  seen->ends.push_back(status);
                  seen->ended_at = core::SystemClock().Now();
                }});
  return seen;
}

SeenPtr VirtualLink::Download(core::FragmentId fragment, bool anchor, size_t most_chunks) {
  auto seen = std::make_shared<Seen>();
  link->Download({.kind = anchor ? DownloadKind::kAnchor : DownloadKind::kUpdate,
                  .fragment = fragment,
                  .num_chunks = most_chunks,
                  .on_header =
                      [seen](const DownloadHeader& header) {
                        ++seen->headers;
                        seen->chunks.assign(header.num_chunks, "");
                      },
                  .on_chunk =
                      [seen](int index, std::string chunk) {
                        std::string& slot = seen->chunks.at(index);
                        if (!slot.empty()) ++seen->doubles;
                        slot = std::move(chunk);
                      },
                  .done =
                      [seen](const absl::Status& status, uint64_t digest) {
                        seen->ends.push_back(status);
                        seen->digest = digest;
                        seen->ended_at = core::SystemClock().Now();
                      }});
  return seen;
}

SeenPtr VirtualLink::Fetch(core::FragmentId fragment, core::Version version, bool anchor, int chunks, size_t bytes) {
  coordinator->downloads[{fragment, anchor}] = {version, PayloadOf(fragment, version, chunks, bytes)};
  return Download(fragment, anchor, chunks);
}

void VirtualLink::CutAfter(int count, bool whole_link) {
  cut_after_ = carried_ + count;
  cuts_link_ = whole_link;
}

void VirtualLink::Listen(bool listens) {
  if (listens) {
    network.Listen(kHub, {.process = hub_, .server = coordinator});
  } else {
    network.Close(kHub);
  }
}

void ExpectFetched(const Seen& seen, const Payload& payload, uint64_t digest) {
  ASSERT_EQ(seen.ends.size(), 1u);
  EXPECT_TRUE(seen.ends[0].ok()) << seen.ends[0];
  EXPECT_EQ(seen.chunks, payload);
  EXPECT_EQ(seen.doubles, 0);
  EXPECT_EQ(seen.digest, digest);
}

}  // namespace causeway::transport
