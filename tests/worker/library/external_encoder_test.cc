// Contributions of another program's θ on a device: the program takes KEEPs, and the bytes are the host's.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "core/fragment_map.h"
#include "replica/replica.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "worker/device/device_encoder.h"
#include "worker/library/external_store.h"

namespace causeway::worker {
namespace {

TEST(ExternalEncoderTest, TheProgramsThetaIsKeptAndEncodedOnTheDevice) {
  const core::Manifest manifest = {{"a", {3, 4000}}, {"b", {257}}};
  const core::FragmentMap map(manifest, {{0, 1}});
  const std::vector<std::vector<float>> theta = {RandomValues(1, 12'000), RandomValues(2, 257)};
  FakeBackend backend(5);
  ExternalStore store({{.values = 12'000}, {.values = 257}}, [] {});
  const auto keep = [&](const replica::UnitRanges& ranges, float* to, offload::Device::Event taken) {
    return store.KeepTheta(ranges, to, taken);
  };
  std::vector<void*> streams, ordered;
  store.EncodeOnDevice(std::make_shared<DeviceEncoder>(&backend, keep, DeviceEncoder::Options{.parameters = 12'257}),
                       {.copy =
                            [&](void* stream, float* to, const void* from, int64_t count, int event) {
                              streams.push_back(stream);
                              backend.Launch(offload::Queue::kCompute,
                                             CopyKernel<float, float>{static_cast<const float*>(from), to, count});
                              backend.device().Record(event, offload::Queue::kCompute);
                              return absl::OkStatus();
                            },
                        .order_after =
                            [&](void* event) {
                              ordered.push_back(event);
                              return absl::OkStatus();
                            },
                        .await = [](void*) { return absl::OkStatus(); }});
  core::RunConfig config;
  config.codec.up = core::CodecId::kInt4;
  core::BufferPool pool;
  replica::Replica there(map, 0, config, &pool), here(map, 0, config, &pool);
  std::vector<float> staging(map.fragment(0).padded_values());
  std::ranges::copy(theta[0], staging.begin());
  std::ranges::copy(theta[1], staging.begin() + 3 * core::kUnitValues);
  int program_stream = 0;
  for (int round = 0; round < 2; ++round) {
    absl::StatusOr<int64_t> ticket;
    std::jthread site([&] { ticket = store.encoder()->BeginKeep(replica::RangesOf(map.fragment(0))); });
    for (int done = 0; done < 2;) {
      const std::optional<WorkPiece> piece = store.Take();
      if (!piece) {
        std::this_thread::yield();
        continue;
      }
      EXPECT_EQ(piece->kind, WorkPiece::Kind::kKeep);
      EXPECT_EQ(store.CarryOut(piece->id, &program_stream).code(), absl::StatusCode::kInvalidArgument);
      ASSERT_TRUE(store.Keep(piece->id, theta[piece->tensor].data() + piece->first, &program_stream).ok());
      ++done;
    }
    site.join();
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    const auto encoded = there.EncodeKept(*store.encoder(), *ticket);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    EXPECT_EQ(*encoded, *here.EncodeContribution(staging));
    store.encoder()->End(*ticket);
    there.Resolve(/*merged=*/true);
    here.Resolve(/*merged=*/true);
  }
  EXPECT_EQ(streams, std::vector<void*>(4, &program_stream));

  // A move by an anchor that is on the device: the piece says where, and its end is an event there.
  const replica::UnitRanges ranges = replica::RangesOf(map.fragment(0));
  const std::vector<float> anchor(map.fragment(0).padded_values(), 0.5f);
  ASSERT_TRUE(store.encoder()->TakeAnchor(ranges, anchor, 77).ok());
  std::jthread site([&] { EXPECT_TRUE(store.Move(ranges, replica::Movement::Mix(0.5f, anchor, 77)).ok()); });
  for (int done = 0; done < 2;) {
    const std::optional<WorkPiece> piece = store.Take();
    if (!piece) continue;
    const int64_t at = piece->tensor == 0 ? 0 : 3 * core::kUnitValues;
    EXPECT_EQ(piece->on_device, store.encoder()->AnchorOf(ranges, 77) + at);
    ASSERT_TRUE(store.DoneAfter(piece->id, &program_stream).ok());
    ++done;
  }
  EXPECT_EQ(ordered, std::vector<void*>(2, &program_stream));
}

}  // namespace
}  // namespace causeway::worker
