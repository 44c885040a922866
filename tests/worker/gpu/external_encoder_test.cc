// Contributions of another program's θ on a device: the program takes KEEPs, and the bytes are the host's.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "core/fragment_map.h"
#include "replica/replica.h"
#include "tests/worker/train/test_values.h"
#include "worker/gpu/device_encoder.h"
#include "worker/gpu/fake_backend.h"
#include "worker/site/external_store.h"

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
  std::vector<void*> streams;
  store.EncodeOnDevice(
      std::make_shared<DeviceEncoder>(&backend, keep, DeviceEncoder::Options{.parameters = 12'257}),
      [&](void* stream, float* to, const void* from, int64_t count, int event) {
        streams.push_back(stream);
        backend.Launch(offload::Queue::kCompute, CopyKernel<float, float>{static_cast<const float*>(from), to, count});
        backend.device().Record(event, offload::Queue::kCompute);
        return absl::OkStatus();
      });
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
}

}  // namespace
}  // namespace causeway::worker
