#include "transport/messages.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "core/limits.h"
#include "tests/transport/byte_buffer.h"
#include "transport/bulk_message.h"

namespace causeway::transport {
namespace {

using ::testing::HasSubstr;

const core::Manifest kManifest = {{"wq", {128, 64}, core::TensorKind::kMatrix, 0},
                                  {"wk", {64}, core::TensorKind::kNorm, 1},
                                  {"embed", {7, 3}, core::TensorKind::kEmbedding}};

TEST(Messages, ManifestAndFragmentMapComeBackAsTheyWere) {
  const core::FragmentMap map(kManifest, {{0, 1}, {2}});
  v1::Welcome welcome;
  ToProto(map.manifest(), welcome.mutable_manifest());
  ToProto(map, welcome.mutable_fragments());
  const auto back = FromProto(welcome.manifest(), welcome.fragments());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, map);
}

TEST(Messages, TensorsThatAreNotSyncedComeBackAsTheyWere) {
  core::Manifest manifest = kManifest;
  manifest[0].dtype = core::DType::kBfloat16;
  manifest[1].frozen = true;
  manifest[1].values_digest = ~uint64_t{0};
  manifest.push_back({.name = "head", .shape = {7, 3}, .kind = core::TensorKind::kHead, .alias_of = "embed"});
  const core::FragmentMap map(manifest, {{0}, {2}});
  v1::Welcome welcome;
  ToProto(map.manifest(), welcome.mutable_manifest());
  ToProto(map, welcome.mutable_fragments());
  const auto back = FromProto(welcome.manifest(), welcome.fragments());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, map);
  welcome.mutable_fragments(0)->add_tensors(1);
  EXPECT_THAT(FromProto(welcome.manifest(), welcome.fragments()).status().message(),
              HasSubstr("fragment map: expected tensors that are trained, got wk [64] norm of layer 1, frozen"));
}

TEST(Messages, EntryAndHeaderComeBackAsTheyWere) {
  const core::Entry entry{7, {1, 2}, {1, 3}, {"asia", "eu"}};
  v1::Entry entry_message;
  ToProto(entry, &entry_message);
  EXPECT_EQ(FromProto(entry_message), entry);

  const DownloadHeader header{9, {0.4f, 0.8f}, {"eu"}, {8}, {0.25}, {"asia", "eu"}, 12, true};
  v1::DownloadHeader message;
  ToProto(header, &message);
  const DownloadHeader back = FromProto(message);
  EXPECT_EQ(back.version, header.version);
  EXPECT_EQ(back.outer, header.outer);
  EXPECT_EQ(back.merged, header.merged);
  EXPECT_EQ(back.merged_bases, header.merged_bases);
  EXPECT_EQ(back.merged_weights, header.merged_weights);
  EXPECT_EQ(back.sites, header.sites);
  EXPECT_EQ(back.num_chunks, header.num_chunks);
  EXPECT_TRUE(back.already_held);
}

TEST(Messages, ProgressComesBackAsItWas) {
  core::Progress progress{.step = 5,
                          .tokens = 6,
                          .loss = std::nan(""),
                          .tokens_per_s = 7.5,
                          .compute_s = 1,
                          .stall_s = 2,
                          .wall_s = 3,
                          .slack_s = -0.5,
                          .contributions_sent = 8,
                          .contributions_merged = 9,
                          .residual_norm = 10};
  progress.digests[3] = {11, 0xffffffffffffffff};
  progress.in_flight = {"2:sending"};
  progress.fragments[2] = {-0.25, 12, "updates take 11 steps"};
  progress.link = {1e6, 2e6, 0.05, 3};
  progress.offload = {2, 1000, "because", 0.5, 0.25, 0.125, 40, 3, 4, 36000, 50000, 7000};
  progress.ranks = {
      8, 2, "rank 3 of 8 (x)", 0.5, "it waits", 3e6, core::OnebitProgress{208, 0.97, 31.8}, {{"node", 4e6, 4.1e6}}};
  v1::Progress message;
  ToProto(progress, &message);
  core::Progress back = FromProto(message);
  EXPECT_EQ(back.step, 5);
  EXPECT_EQ(back.tokens, 6);
  EXPECT_TRUE(std::isnan(back.loss));
  EXPECT_EQ(back.tokens_per_s, 7.5);
  EXPECT_EQ(back.compute_s, 1);
  EXPECT_EQ(back.stall_s, 2);
  EXPECT_EQ(back.wall_s, 3);
  EXPECT_EQ(back.slack_s, -0.5);
  EXPECT_EQ(back.contributions_sent, 8);
  EXPECT_EQ(back.contributions_merged, 9);
  EXPECT_EQ(back.residual_norm, 10);
  EXPECT_EQ(back.digests.at(3).version, 11);
  EXPECT_EQ(back.digests.at(3).digest, 0xffffffffffffffff);
  EXPECT_EQ(back.in_flight, progress.in_flight);
  EXPECT_EQ(back.fragments, progress.fragments);
  EXPECT_EQ(back.link, progress.link);
  EXPECT_EQ(back.offload, progress.offload);
  EXPECT_EQ(back.ranks, progress.ranks);
  EXPECT_EQ(back.eval_loss, std::nullopt);

  progress.eval_loss = 0;  // measured to be 0 is not the same as not measured
  progress.eval_versions = {1, 2};
  message.Clear();
  ToProto(progress, &message);
  back = FromProto(message);
  EXPECT_EQ(back.eval_loss, 0);
  EXPECT_EQ(back.eval_versions, progress.eval_versions);
}

// As worker/site/site_report.cc fills it, with the longest reason of a delay and versions that a year of rounds
// reaches.
TEST(Messages, LongestProgressOfAnHonestSiteIsWithinItsLimit) {
  constexpr core::Version kVersion = 100'000'000;
  for (const int fragments : {1, 24, core::kMaxFragments}) {
    core::Progress progress{.step = 1'000'000'000, .tokens = int64_t{1} << 50, .eval_loss = 1.5};
    for (core::FragmentId p = 0; p < fragments; ++p) {
      progress.digests[p] = {kVersion, 0xffffffffffffffff};
      progress.in_flight.push_back(std::to_string(p) + ":waiting");
      progress.eval_versions.push_back(kVersion);
      progress.fragments[p] = {-1.5, 10'000, "updates take 10000000 ms, steps 1000000.0 ms: the longest there is"};
    }
    progress.offload = {2, 1000, std::string(core::kMaxSiteTextBytes, 'x'), 0.5, 0.25, 0.125};
    v1::SiteMessage message;
    ToProto(progress, message.mutable_progress());
    EXPECT_LE(static_cast<int64_t>(message.ByteSizeLong()), core::MaxControlBytes(fragments));
  }
}

TEST(Messages, DataOfASiteIsTheSameOnTheOtherSideAndMayBeUnsaid) {
  v1::Join message;
  EXPECT_EQ(*DataFromProto(message), core::SiteData());
  const core::SiteData data = {.training = core::DataFingerprint{5, 0xffffffffffffffff},
                               .held_out = core::DataFingerprint{1, 0}};
  ToProto(data, &message);
  EXPECT_EQ(*DataFromProto(message), data);
  message.mutable_data()->set_tokens(0);
  EXPECT_EQ(DataFromProto(message).status().message(), "fingerprint of data: expected 1 or more tokens, got 0");
}

TEST(Messages, ManifestThatNoHonestPeerSendsIsRefused) {
  const auto refusal = [](const std::function<void(v1::Manifest&)>& spoil) {
    v1::Manifest message;
    ToProto(kManifest, &message);
    spoil(message);
    const auto manifest = FromProto(message);
    EXPECT_TRUE(absl::IsInvalidArgument(manifest.status()));
    return std::string(manifest.status().message());
  };
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.clear_tensors(); }), HasSubstr("got 0"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(1)->set_name("wq"); }), HasSubstr("wq is listed twice"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(1)->set_name(""); }), HasSubstr("names of 1 to"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(1)->set_kind(0); }), HasSubstr("tensor wk: kind 0"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(1)->set_kind(7); }), HasSubstr("kind 7"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(1)->set_kind(256 + 1); }), HasSubstr("kind 257"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(1)->set_dtype(3); }), HasSubstr("dtype 3"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(1)->set_alias_of("wq"); }),
              HasSubstr("tied to wq: expected the shape of"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(1)->set_alias_of("no"); }), HasSubstr("not listed"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(0)->set_shape(0, 0); }), HasSubstr("positive"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(0)->set_shape(0, -1); }), HasSubstr("positive"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(0)->set_shape(0, int64_t{1} << 62); }),
              HasSubstr("at most"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(0)->set_layer(-2); }), HasSubstr("layer -2"));
  EXPECT_THAT(refusal([](v1::Manifest& m) { m.mutable_tensors(0)->set_layer(1 << 30); }), HasSubstr("layer"));
}

TEST(Messages, FragmentMapThatNoHonestPeerSendsIsRefused) {
  const auto refusal = [](const std::vector<std::vector<int>>& fragments) {
    v1::Welcome welcome;
    ToProto(kManifest, welcome.mutable_manifest());
    for (const auto& tensors : fragments) {
      welcome.add_fragments()->mutable_tensors()->Assign(tensors.begin(), tensors.end());
    }
    const auto map = FromProto(welcome.manifest(), welcome.fragments());
    EXPECT_TRUE(absl::IsInvalidArgument(map.status()));
    return std::string(map.status().message());
  };
  EXPECT_THAT(refusal({}), HasSubstr("covers 0 of 3 synced tensors"));
  EXPECT_THAT(refusal({{0, 1}}), HasSubstr("covers 2 of 3 synced tensors"));
  EXPECT_THAT(refusal({{0, 1}, {1, 2}}), HasSubstr("tensor 1 of 3 is not there or placed twice"));
  EXPECT_THAT(refusal({{0, 1}, {3}}), HasSubstr("tensor 3 of 3 is not there"));
  EXPECT_THAT(refusal({{-1}, {0, 1, 2}}), HasSubstr("tensor -1 of 3 is not there"));
  EXPECT_THAT(refusal({{0, 1, 2}, {}}), HasSubstr("a fragment has no tensor"));
  EXPECT_THAT(refusal({{1, 0}, {2}}), HasSubstr("in ascending order, got 0 after 1"));
}

TEST(Messages, FragmentMapInPartsComesBack) {
  const core::Manifest manifest = {{"a", {3, 4096}}, {"b", {5000}}};
  const auto map = core::FragmentMap::FromParts(manifest, {{{0, 0, 2}}, {{0, 2}, {1, 0, 1}}, {{1, 1}}});
  v1::Welcome welcome;
  ToProto(map.manifest(), welcome.mutable_manifest());
  ToProto(map, welcome.mutable_fragments());
  const auto back = FromProto(welcome.manifest(), welcome.fragments());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, map);
}

TEST(Messages, PartsThatNoHonestPeerSendsAreRefused) {
  const auto refusal = [](const std::vector<core::TensorPart>& parts) {
    v1::Welcome welcome;
    ToProto({{"a", {3, 4096}}}, welcome.mutable_manifest());
    for (const core::TensorPart& part : parts) {
      v1::FragmentTensors& fragment = *welcome.add_fragments();
      fragment.add_tensors(part.tensor);
      fragment.add_begin_units(part.begin_unit);
      fragment.add_num_units(part.num_units);
    }
    const auto map = FromProto(welcome.manifest(), welcome.fragments());
    EXPECT_TRUE(absl::IsInvalidArgument(map.status()));
    return std::string(map.status().message());
  };
  EXPECT_THAT(refusal({{0, 0, 2}}), HasSubstr("covers 0 of 1 synced tensors"));
  EXPECT_THAT(refusal({{0, 0, 2}, {0, 1, 2}}), HasSubstr("placed twice"));
  EXPECT_THAT(refusal({{0, 1, 2}, {0, 0, 1}}), HasSubstr("is not there"));
  EXPECT_THAT(refusal({{0, 0, 4}}), HasSubstr("which has 3, got 4 from 0"));
  EXPECT_THAT(refusal({{0, 3, 0}}), HasSubstr("got 0 from 3"));
  EXPECT_THAT(refusal({{0, -1, 4}}), HasSubstr("got 4 from -1"));
}

core::Membership MembershipForTest() {
  core::Membership membership{.started = true, .finished = false, .paused = true, .stopped = false, .seeder = "eu"};
  membership.sites["eu"] = {
      .session = "s1", .stay = 4, .state = core::SiteState::kTraining, .reason = "in", .first_versions = {1, 2}};
  membership.sites["us"] = {
      .session = "s2", .stay = 1, .state = core::SiteState::kGone, .ended = core::Ended::kExpired, .reason = "left"};
  return membership;
}

TEST(ShardMessages, AMembershipComesBackAsItWas) {
  const core::Membership sent = MembershipForTest();
  v1::MembershipUpdate message;
  ToProto(sent, &message);
  const auto came = FromProto(message);
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_TRUE(came->started);
  EXPECT_FALSE(came->finished);
  EXPECT_TRUE(came->paused);
  EXPECT_FALSE(came->stopped);
  EXPECT_EQ(came->seeder, "eu");
  ASSERT_EQ(came->sites.size(), 2u);
  for (const auto& [site, member] : sent.sites) {
    EXPECT_EQ(came->sites.at(site).session, member.session);
    EXPECT_EQ(came->sites.at(site).stay, member.stay);
    EXPECT_EQ(came->sites.at(site).state, member.state);
    EXPECT_EQ(came->sites.at(site).ended, member.ended);
    EXPECT_EQ(came->sites.at(site).reason, member.reason);
    EXPECT_EQ(came->sites.at(site).first_versions, member.first_versions);
  }
}

TEST(ShardMessages, AStateThatIsNotKnownIsRefusedWithItsSite) {
  v1::MembershipUpdate message;
  ToProto(MembershipForTest(), &message);
  message.mutable_members(1)->set_state(static_cast<uint32_t>(core::SiteState::kGone) + 1);
  const auto came = FromProto(message);
  EXPECT_TRUE(absl::IsInvalidArgument(came.status()));
  EXPECT_EQ(came.status().message(), "membership: site us: state 4 and end 2 are not known to this version");
}

// The message's bytes cut into slices of that size, as a network may.
grpc::ByteBuffer Cut(const std::string& bytes, size_t size) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += size) slices.emplace_back(bytes.substr(at, size));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string ChunkOf(size_t size) {
  std::string chunk(size, '\0');
  for (size_t i = 0; i < size; ++i) chunk[i] = static_cast<char>(i * 7);
  return chunk;
}

TEST(BulkMessage, AChunksBytesAreThoseThatProtobufMakes) {
  for (size_t size : {0, 1, 127, 128, 300, 1 << 20}) {
    const std::string chunk = ChunkOf(size);
    v1::UploadMessage upload;
    upload.set_chunk(chunk);
    v1::DownloadMessage download;
    download.set_chunk(chunk);
    const std::string bytes = TextOf(ChunkMessage(std::make_shared<const std::string>(chunk)));
    EXPECT_EQ(bytes, upload.SerializeAsString());
    EXPECT_EQ(bytes, download.SerializeAsString());
  }
}

TEST(BulkMessage, AChunkIsReadFromSlicesOfAnySize) {
  const std::string chunk = ChunkOf(1000);
  v1::UploadMessage message;
  message.set_chunk(chunk);
  for (size_t size : {1, 2, 3, 5, 64, 2000}) {
    EXPECT_EQ(TakeChunk(Cut(message.SerializeAsString(), size)), chunk) << "slices of " << size;
  }
}

TEST(BulkMessage, WhatIsNoChunkAloneIsLeftToProtobuf) {
  v1::UploadMessage header;
  header.mutable_header()->set_fragment(3);
  grpc::ByteBuffer bytes = ToBytes(header);
  EXPECT_EQ(TakeChunk(bytes), std::nullopt);
  v1::UploadMessage back;
  ASSERT_TRUE(FromBytes(bytes, &back));
  EXPECT_EQ(back.header().fragment(), 3);

  v1::UploadMessage chunk;
  chunk.set_chunk("abc");
  const std::string text = chunk.SerializeAsString();
  EXPECT_EQ(TakeChunk(Cut(text.substr(0, text.size() - 1), 8)), std::nullopt);  // cut short
  EXPECT_EQ(TakeChunk(Cut(text + text, 8)), std::nullopt);                      // two fields
  EXPECT_EQ(TakeChunk(Cut("\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 8)), std::nullopt);
  EXPECT_EQ(TakeChunk(grpc::ByteBuffer()), std::nullopt);
}

TEST(BulkMessage, AChunkLivesUntilItsMessageIsGone) {
  auto chunk = std::make_shared<const std::string>(ChunkOf(5000));
  const std::weak_ptr<const std::string> weak = chunk;
  {
    const grpc::ByteBuffer message = ChunkMessage(std::move(chunk));
    EXPECT_FALSE(weak.expired());
  }
  EXPECT_TRUE(weak.expired());
}

}  // namespace
}  // namespace causeway::transport
