#include "transport/read_message.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>

#include "causeway/v1/coordinator.pb.h"
#include "core/codec_id.h"
#include "tests/transport/byte_buffer.h"
#include "tests/transport/hostile_values.h"

namespace causeway::transport {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::Status Check(const Descriptor& message, const std::string& bytes) {
  const grpc::ByteBuffer buffer = BufferOf(bytes);
  grpc::ProtoBufferReader reader(const_cast<grpc::ByteBuffer*>(&buffer));
  return CheckFields(message, &reader);
}
absl::Status Check(const Message& message) { return Check(*message.GetDescriptor(), message.SerializeAsString()); }

std::unique_ptr<Message> New(const Descriptor& type) {
  return std::unique_ptr<Message>(MessageFactory::generated_factory()->GetPrototype(&type)->New());
}

// A field of given length, in bytes.
std::string Bytes(int field, const std::string& value) {
  CHECK(field < 16 && value.size() < 128);
  return std::string({static_cast<char>(field << 3 | 2), static_cast<char>(value.size())}) + value;
}

TEST(FieldLimits, EachFieldOfEachRequestHasARowAndNoOtherDoes) {
  std::set<std::string> fields, rows;
  for (const Descriptor* request : Requests()) {
    for (const FieldPath& path : PathsIn(*request)) {
      fields.insert(path.field().containing_type()->name() + "." + path.field().name());
    }
  }
  for (const FieldLimit& limit : FieldLimits())
    EXPECT_TRUE(rows.insert(std::string(limit.field)).second) << limit.field;
  EXPECT_EQ(rows, fields);
}

TEST(FieldLimits, EachRowFitsItsFieldsType) {
  for (const Descriptor* request : Requests()) {
    for (const FieldPath& path : PathsIn(*request)) {
      SCOPED_TRACE(path.Text());
      const FieldLimit& limit = path.limit();
      EXPECT_EQ(limit.items > 1, path.field().is_repeated());
      EXPECT_EQ(limit.holds == Holds::kText, path.field().cpp_type() == FieldDescriptor::CPPTYPE_STRING);
      EXPECT_TRUE(limit.holds != Holds::kNumber || path.field().cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE);
      EXPECT_TRUE(limit.holds == Holds::kAnything || limit.least < limit.most);
    }
  }
}

TEST(ReadMessage, EachFieldTakesWhatIsWithinItsLimitAndNamesItselfBeyond) {
  int tried = 0;
  for (const Descriptor* request : Requests()) {
    for (const FieldPath& path : PathsIn(*request)) {
      for (const HostileValue& value : HostileValues(path)) {
        SCOPED_TRACE(request->name() + " " + path.Text() + " = " + value.name);
        const std::unique_ptr<Message> message = New(*request);
        value.put(*message);
        const absl::Status status = Check(*message);
        EXPECT_EQ(status.ok(), value.within) << status;
        ++tried;
        if (status.ok()) continue;
        EXPECT_TRUE(absl::IsInvalidArgument(status));
        EXPECT_THAT(std::string(status.message()), HasSubstr(path.field().name()));
        EXPECT_THAT(std::string(status.message()), HasSubstr("expected "));
        EXPECT_LT(status.message().size(), 200u) << "what came may be long";
      }
    }
  }
  EXPECT_GT(tried, 1'500);
}

TEST(ReadMessage, TextsComeInPrintableAndInOneLineWhateverTheirPlace) {
  v1::SiteMessage message;
  message.mutable_leave()->set_reason("done\x1b[2J\n[error] forged");
  v1::SiteMessage join;
  join.mutable_join()->mutable_context()->set_site("e\xE2\x80\xAEu");
  join.mutable_join()->mutable_manifest()->add_tensors()->set_name(std::string("w\0", 2));
  join.mutable_join()->add_version_proofs("\x01\xFF");  // bytes
  for (v1::SiteMessage* one : {&message, &join}) {
    grpc::ByteBuffer bytes = BufferOf(one->SerializeAsString());
    ASSERT_TRUE(ReadMessage(bytes, one).ok());
  }
  EXPECT_EQ(message.leave().reason(), "done\\x1b[2J\\n[error] forged");
  EXPECT_EQ(join.join().context().site(), "e\\u202eu");
  EXPECT_EQ(join.join().manifest().tensors(0).name(), "w\\x00");
  EXPECT_EQ(join.join().version_proofs(0), "\x01\xFF");
}

TEST(ReadMessage, TheWayToTheFieldIsNamed) {
  v1::SiteMessage message;
  for (int i = 0; i < 5; ++i) message.mutable_join()->mutable_manifest()->add_tensors()->set_name("t");
  message.mutable_join()->mutable_manifest()->mutable_tensors(3)->set_name(std::string(513, 'x'));
  EXPECT_EQ(Check(message).message(), "join.manifest.tensors[3].name: expected at most 512 bytes, got 513");
  message.mutable_progress()->set_step(-7);
  EXPECT_EQ(Check(message).message(), "progress.step: expected 0 to 9007199254740992, got -7");
  message.mutable_progress()->set_step(7);
  for (int i = 0; i < 1025; ++i) message.mutable_progress()->add_eval_versions(i);
  EXPECT_EQ(Check(message).message(), "progress.eval_versions[1024]: expected at most 1024, got more");
}

TEST(ReadMessage, FieldThatComesTwiceIsRefusedAlsoInAOneof) {
  v1::SiteMessage ready, ping;
  ready.mutable_ready();
  ping.mutable_ping()->set_sent_us(1);
  const Descriptor& type = *v1::SiteMessage::descriptor();
  EXPECT_EQ(Check(type, ready.SerializeAsString() + ready.SerializeAsString()).message(),
            "ready: expected one, got another");
  EXPECT_EQ(Check(type, ready.SerializeAsString() + ping.SerializeAsString()).message(),
            "ping: expected one of kind, got ready as well");
  v1::Context site;
  site.set_site("a");
  EXPECT_EQ(Check(*v1::Context::descriptor(), site.SerializeAsString() + site.SerializeAsString()).message(),
            "site: expected one, got another");
}

TEST(ReadMessage, NumbersMayComeOneByOneOrAllTogether) {
  const std::string together = Bytes(3, {1, 2, 3}), one_by_one = {3 << 3, 1, 3 << 3, 2};
  const Descriptor& type = *v1::Join::descriptor();
  EXPECT_TRUE(Check(type, together + one_by_one).ok());
  v1::Join join;
  ASSERT_TRUE(join.ParseFromString(together + one_by_one));
  EXPECT_EQ(join.codecs_size(), 5);
  std::string many;
  for (int i = 0; i < core::kMaxCodecs; ++i) many += std::string({3 << 3, 1});
  EXPECT_TRUE(Check(type, many).ok());
  EXPECT_FALSE(Check(type, many + one_by_one).ok());
  EXPECT_FALSE(Check(type, many + together).ok()) << "all of them count";
}

TEST(ReadMessage, FieldOfANewerPeerIsPassedOverAndAGroupIsNot) {
  const Descriptor& type = *v1::Leave::descriptor();
  EXPECT_TRUE(Check(type, Bytes(15, "new")).ok());
  EXPECT_EQ(Check(type, {15 << 3 | 3}).message(), "Leave: expected fields, got a group");
  EXPECT_THAT(std::string(Check(type, {2 << 3 | 5, 0, 0, 0, 0}).message()), StartsWith("reason: expected wire type 2"));
}

TEST(ReadMessage, BytesThatEndInTheMiddleAreRefused) {
  v1::SiteMessage message;
  message.mutable_join()->mutable_context()->set_site("a");
  message.mutable_join()->add_versions(300);
  const std::string bytes = message.SerializeAsString();
  for (size_t length = 1; length < bytes.size(); ++length) {
    EXPECT_FALSE(Check(*v1::SiteMessage::descriptor(), bytes.substr(0, length)).ok()) << length;
  }
}

TEST(ReadMessage, WhatPassesIsAMessageAndWhatIsNoneIsRefused) {
  v1::Leave leave;
  leave.set_reason("drained");
  grpc::ByteBuffer bytes = ToBytes(leave);
  v1::Leave read;
  ASSERT_TRUE(ReadMessage(bytes, &read).ok());
  EXPECT_EQ(read.reason(), "drained");
  bytes = BufferOf(Bytes(2, "\xff\xfe"));  // no UTF-8
  EXPECT_EQ(ReadMessage(bytes, &read).message(), "expected a message Leave, got bytes that are none");
}

// The largest run: fragments, ranks, tensors and sites as many as there may be, the longest honest values.
TEST(ReadMessage, NoLimitCutsOffAnHonestSiteOfTheLargestRun) {
  v1::SiteMessage message;
  v1::Join& join = *message.mutable_join();
  join.mutable_context()->set_site(std::string(64, 's'));
  join.mutable_context()->set_run_id(std::string(64, 'r'));
  join.mutable_context()->set_session(std::string(64, 's'));
  join.mutable_context()->set_world(core::kMaxRanks);
  join.mutable_context()->set_rank(core::kMaxRanks - 1);
  join.mutable_context()->set_num_shards(64);
  for (size_t i = 0; i < core::kMaxTensors; ++i) {
    v1::TensorSpec& tensor = *join.mutable_manifest()->add_tensors();
    tensor.set_name(absl::StrCat("model.layers.", i, std::string(100, '.'), "mlp.experts.gate_proj.weight"));
    for (int64_t extent : {1024, 1 << 20}) tensor.add_shape(extent);
    tensor.set_layer(static_cast<int>(i));
    tensor.set_kind(5);
    tensor.set_values_digest(~uint64_t{0});
  }
  for (core::CodecId codec : core::kAllCodecs) join.add_codecs(static_cast<uint32_t>(codec));
  for (int p = 0; p < core::kMaxFragments; ++p) {
    join.add_versions(1'000'000'000);
    join.add_admitted(p == 0 ? -1 : 1'000'000'000);
  }
  EXPECT_TRUE(Check(message).ok()) << Check(message);
  EXPECT_LT(message.ByteSizeLong(), static_cast<size_t>(core::kMaxControlMessageBytes));
  v1::Progress& progress = *message.mutable_progress();
  progress.set_step(1'000'000'000'000);
  progress.set_tokens(int64_t{1} << 50);
  progress.set_loss(std::nan(""));
  progress.set_residual_norm(std::numeric_limits<double>::infinity());  // of a model that diverges
  progress.set_slack_s(-86'400);
  progress.set_tokens_per_s(1e9);
  for (int p = 0; p < core::kMaxFragments; ++p) {
    v1::FragmentDigest& digest = *progress.add_digests();
    digest.set_fragment(p);
    digest.set_version(1'000'000'000);
    digest.set_digest(~uint64_t{0});
    v1::FragmentProgress& fragment = *progress.add_fragments();
    fragment.set_fragment(p);
    fragment.set_slack_s(-1);
    fragment.set_delay(1'000'000);
    fragment.set_reason("the longest of 3 rounds took 12.3 s of 4.5 s a step, with a tenth and a step");
    progress.add_in_flight(absl::StrCat(p, ":sending"));
    progress.add_in_flight(absl::StrCat(p, ":waiting"));
    progress.add_eval_versions(1'000'000'000);
  }
  EXPECT_TRUE(Check(message).ok()) << Check(message);
  EXPECT_LT(static_cast<int64_t>(message.ByteSizeLong()), core::MaxControlBytes(core::kMaxFragments));
}

// A few hundred of each: tests/fuzz/messages.cc looks for those that only millions find.
TEST(ReadMessage, BytesThatAreChangedAtRandomAreRefusedOrAMessage) {
  std::mt19937_64 random(7);
  for (const Descriptor* request : Requests()) {
    const std::unique_ptr<Message> message = New(*request);
    for (const FieldPath& path : PathsIn(*request)) {
      for (const HostileValue& value : HostileValues(path)) {
        if (value.within && message->ByteSizeLong() < 2'000) value.put(*message);
      }
    }
    const std::string whole = message->SerializeAsString();
    if (whole.empty()) continue;
    for (int i = 0; i < 200; ++i) {
      std::string bytes = whole;
      for (uint64_t changes = random() % 4; changes > 0; --changes)
        bytes[random() % bytes.size()] = static_cast<char>(random());
      bytes.resize(random() % 4 == 0 ? random() % bytes.size() : bytes.size());
      const absl::Status status = Check(*request, bytes);
      const std::unique_ptr<Message> read = New(*request);
      if (status.ok() && read->ParseFromString(bytes)) {
        EXPECT_TRUE(Check(*read).ok()) << "as it came, so it is";
      }
    }
  }
}

}  // namespace
}  // namespace causeway::transport
