#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "ctl/program_log.h"

namespace causeway::ctl {
namespace {

// A pipe whose reader reads only when the test does.
class LogWriterTest : public ::testing::Test {
 protected:
  LogWriterTest() {
    EXPECT_EQ(pipe(ends_), 0);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    writer_ = new LogWriter(ends_[1]);  // as its header says
  }
  ~LogWriterTest() override { Read(); }

  std::string Read() {
    std::string all;
    char piece[1 << 16];
    for (ssize_t size = 0; (size = read(ends_[0], piece, sizeof piece)) > 0;) all.append(piece, size);
    return all;
  }
  std::string ReadUntilEmpty() {
    std::string all;
    while (writer_->figures().waiting > 0) {
      all += Read();
      writer_->Flush(1);
    }
    return all + Read();
  }
  void Fill(size_t bytes) {
    for (size_t written = 0; written < bytes; written += kLine.size()) writer_->Add(kLine);
  }

  const std::string kLine = std::string(999, 'x') + "\n";
  LogWriter* writer_ = nullptr;

 private:
  int ends_[2] = {};
};

TEST_F(LogWriterTest, ALineIsThereBeforeTheCallReturns) {
  writer_->Add("one\n");
  EXPECT_EQ(Read(), "one\n");
  EXPECT_EQ(writer_->figures().stuck_s, 0);
}

TEST_F(LogWriterTest, LinesThatNobodyReadsWaitAndComeWholeAndInOrder) {
  Fill(200'000);
  writer_->Add("the last\n");
  writer_->Flush(1);
  EXPECT_GT(writer_->figures().waiting, 100);
  const std::string all = ReadUntilEmpty();
  EXPECT_EQ(all.size(), 200 * kLine.size() + 9);
  EXPECT_EQ(all.substr(all.size() - 11), "x\nthe last\n");
  EXPECT_EQ(writer_->figures().dropped, 0);
}

TEST_F(LogWriterTest, BeyondItsRoomTheOldestAreDroppedAndCounted) {
  Fill(2 * LogWriter::kMostBytes);
  writer_->Add("the last\n");
  const int64_t dropped = writer_->figures().dropped;
  EXPECT_GT(dropped, 900);
  const std::string all = ReadUntilEmpty();
  EXPECT_EQ(all.substr(all.size() - 11), "x\nthe last\n");
  const std::string said = "... " + std::to_string(dropped) + " lines were dropped: the log was not read\n";
  EXPECT_NE(all.find(said), std::string::npos) << said;
  writer_->Add("again\n");
  EXPECT_EQ(Read(), "again\n");
}

TEST_F(LogWriterTest, AReaderThatHasGoneHoldsNothingUp) {
  int gone[2] = {};
  ASSERT_EQ(pipe(gone), 0);
  signal(SIGPIPE, SIG_IGN);
  auto* const writer = new LogWriter(gone[1]);
  close(gone[0]);
  for (int i = 0; i < 200; ++i) writer->Add(kLine);
  EXPECT_EQ(writer->figures().stuck_s, 0);
}

}  // namespace
}  // namespace causeway::ctl
