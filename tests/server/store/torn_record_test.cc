// A last record that never reached the disk whole is let go; all else is damage.
#include "tests/server/store/state_log_for_test.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class TornRecord : public StateLogTest {
 protected:
  // A record of 3 kB after those of the newest file, and what the rest of it is then.
  TornRecord() {
    auto file = LogFile::Create(folder_ / "next.log", before_.end, 2);
    EXPECT_TRUE(file.ok() && file->Append(RecordKind::kRows, std::string(3000, 'r')).ok());
    next_ = ReadAll(folder_ / "next.log").substr(0, 3000 + 96);
  }
  std::string Damaged() const { return absl::StrCat("record ", before_.end.sequence + 1); }

  const std::string path_ = At("log/000002.log"), good_ = RecordsIn(path_);
  const StateLog::Found before_ = Found();
  std::string next_;
};

// A write that was under way is no damage: no site was told of it.
TEST_F(TornRecord, ThatEndsEarlyIsLetGo) {
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{2000}, next_.size() - 1}) {
    Write(path_, good_ + next_.substr(0, bytes));
    EXPECT_EQ(Found().end, before_.end) << bytes;
    EXPECT_THAT(Found().repaired, SizeIs(1));
  }
}

TEST_F(TornRecord, OfWhichAnySectorsAreMissingIsLetGo) {
  const size_t first = good_.size() / 512, last = (good_.size() + next_.size() - 1) / 512;
  ASSERT_GE(last - first, 5u);
  for (uint32_t there = 0; there + 1 < 1U << (last - first + 1); ++there) {
    std::string file = good_ + next_ + std::string(4000, '\0');
    for (size_t sector = first; sector <= last; ++sector) {
      if ((there >> (sector - first) & 1) != 0) continue;
      const size_t begin = std::max(good_.size(), sector * 512);
      file.replace(begin, (sector + 1) * 512 - begin, std::string((sector + 1) * 512 - begin, '\0'));
    }
    Write(path_, file);
    EXPECT_EQ(Found().end, before_.end) << there;
    EXPECT_THAT(Found().repaired, SizeIs(there == 0 ? 0 : 1)) << there;
  }
}

TEST_F(TornRecord, ThatIsThereInFullButNotAsItWasWrittenIsDamage) {
  for (const std::string& zeros : {std::string(), std::string(4000, '\0')}) {
    for (size_t bit = 0; bit < next_.size() * 8; bit += bit < 64 * 8 ? 1 : 97) {
      std::string flipped = good_ + next_;
      flipped[good_.size() + bit / 8] ^= static_cast<char>(1 << bit % 8);
      Write(path_, flipped + zeros);
      EXPECT_THAT(Message(), AllOf(HasSubstr(path_), HasSubstr(Damaged()))) << bit;
    }
  }
}

TEST_F(TornRecord, AfterWhichAPayloadWasWrittenIsDamage) {
  {
    const auto journal = Open();
    for (const char* site : {"eu", "us"}) {
      journal->Commit({.admitted = {Contribution(0, site, 4)}});
      journal->Flush();
    }
  }
  const std::string path = At("log/000003.log");
  const LogContents log = *ReadLogFile(path, std::nullopt);
  const size_t last = 96 + log.records.back().contents.size();
  std::filesystem::remove(At("high_water"));
  Write(path, ReadAll(path).substr(0, static_cast<size_t>(log.end) - last - 10));
  EXPECT_TRUE(ReadStatus().ok()) << "the log alone looks torn";
  const absl::Status status = OpenStatus();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(path), HasSubstr(absl::StrCat("record ", log.records.back().mark.sequence - 1)),
                    HasSubstr("is damaged"), HasSubstr(At("segments"))));
}

TEST_F(StateLogTest, LastRecordWhoseLengthIsWrongIsNotTakenForATornOne) {
  const std::string path = At("log/000002.log");
  const StateLog::Found before = Found();
  std::string bytes = RecordsIn(path);
  const size_t length = bytes.size() + 24;
  bytes += RecordsAfter(before.end, {300});
  for (const size_t byte : {size_t{0}, size_t{1}, size_t{7}}) {
    std::string bad = bytes;
    bad[length + byte] ^= 0x40;
    Write(path, bad);
    EXPECT_THAT(Message(), HasSubstr(absl::StrCat(path, ": record ", before.end.sequence + 1))) << byte;
  }
}

// It was durable before the one behind it was begun.
TEST_F(StateLogTest, RecordThatAnotherOneFollowsIsNotTakenForATornOne) {
  const std::string path = At("log/000002.log");
  const StateLog::Found before = Found();
  const std::string good = RecordsIn(path), next = RecordsAfter(before.end, {1500, 100});
  std::string bad = good + next;
  bad.replace(good.size(), 200, std::string(200, '\0'));
  bad.back() ^= 1;
  Write(path, bad);
  EXPECT_THAT(Message(), HasSubstr(absl::StrCat(path, ": record ", before.end.sequence + 1)));
}

}  // namespace
}  // namespace causeway::server
