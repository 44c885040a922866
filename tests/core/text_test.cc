#include "core/text.h"

#include <arpa/inet.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/address.h"
#include "core/check.h"
#include "core/host_limits.h"
#include "core/json_text.h"
#include "core/listen_failure.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::core {
namespace {

using ::testing::HasSubstr;

TEST(Clipped, TextThatFitsStaysAsItIs) {
  EXPECT_EQ(Clipped("", 3), "");
  EXPECT_EQ(Clipped("leaves", 6), "leaves");
}

TEST(Clipped, LongerOneEndsAtTheBorderOfACharacter) {
  EXPECT_EQ(Clipped("leaves!", 6), "lea…");
  EXPECT_EQ(Clipped("aäöü and so on", 8), "aäö…");
  EXPECT_EQ(Clipped("aäöü and so on", 7), "aä…") << "half of a character is none";
  EXPECT_EQ(Clipped("日本語です", 7), "日…");
  EXPECT_EQ(Clipped("日本", 3), "…");
}

TEST(Clipped, BytesThatAreNoCharactersAreCutTo) { EXPECT_EQ(Clipped(std::string(100, '\x80'), 50), "…"); }

TEST(Printable, ControlCharactersAreWrittenAsEscapesButLinesStay) {
  EXPECT_EQ(Printable("eu\r"), "eu\\r");
  EXPECT_EQ(Printable("\x1b[2Jgone\x7f\a"), "\\x1b[2Jgone\\x7f\\x07");
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(Printable("one\n\ttwo, θ and 日"), "one\n\ttwo, θ and 日");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J"),
            "\\x9b2J")
      << "a terminal takes U+009B for the beginning of a command";
}

TEST(Printable, WhatTurnsTheDirectionOfWritingOrIsNoUtf8IsShownToo) {
  EXPECT_EQ(Printable("a\xE2\x80\xAE"
                      "b\xE2\x81\xA9"
                      "c\xE2\x80\xA8"),
            "a\\u202eb\\u2069c\\u2028");
  EXPECT_EQ(Printable("a\x9B"
                      "b\xE2\x80"),
            "a\\x9bb\\xe2\\x80");
}

TEST(InOneLine, KeepsNoLineBreak) { EXPECT_EQ(InOneLine("one\n[error] two\tθ"), "one\\n[error] two\\tθ"); }

TEST(Quoted, ShowsLineBreaksToo) { EXPECT_EQ(Quoted("eu\r\n\t"), "'eu\\r\\n\\t'"); }

TEST(ByteOrderMark, IsTakenOffOnceAndAtTheBeginningAlone) {
  EXPECT_EQ(WithoutByteOrderMark("\xEF\xBB\xBF\xEF\xBB\xBFx"), "\xEF\xBB\xBFx");
  EXPECT_EQ(WithoutByteOrderMark("x\xEF\xBB\xBF"), "x\xEF\xBB\xBF");
  EXPECT_EQ(WithoutByteOrderMark("\xEF\xBB"), "\xEF\xBB");
}

TEST(Utf8, EndsWhereACharacterIsNone) {
  for (const char* text : {"", "plain text, longer than eight bytes", "é日本𝄞", "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF"}) {
    EXPECT_EQ(Utf8Bytes(text), std::string_view(text).size()) << text;
  }
  for (const char* text :
       {"\xFF", "\xC0\x80", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC3", "\x80", "\xE9t"}) {
    EXPECT_EQ(Utf8Bytes(std::string("eleven of it") + text), 12u) << text;
  }
}

TEST(Utf8, APartMayCutCharactersAtBothEnds) {
  const std::string text = "日本語";
  EXPECT_EQ(Utf8BytesOfPart(text.substr(1, 7)), 7u);
  EXPECT_EQ(Utf8BytesOfPart(text.substr(2, 5)), 5u);
  EXPECT_EQ(Utf8BytesOfPart("ab\xFF"), 2u);
  EXPECT_EQ(Utf8BytesOfPart("\x80\x80\x80\x80"), 3u) << "no character has so long a rest";
}

TEST(PlaceInText, CountsLinesAndCharacters) {
  EXPECT_EQ(PlaceInText("a\nüb", 4).line, 2u);
  EXPECT_EQ(PlaceInText("a\nüb", 4).column, 2u);
}

TEST(CheckDeathTest, FailedCheckEndsAProgramAndSaysWhere) {
  EXPECT_DEATH(CHECK(1 == 2), "text_test.cc:[0-9]+: CHECK failed: 1 == 2");
  EXPECT_DEATH(Guarded([] { CHECK(1 == 2); }), "CHECK failed: 1 == 2");
}

std::vector<std::string>& Heard() {
  static std::vector<std::string> heard;
  return heard;
}

// In a process of its own: what it sets stays.
void FailInLibrary() {
  ThrowFailedChecks([](const std::string& what) { Heard().push_back(what); });
  const bool passed = Guarded([] { CHECK(1 == 2); });
  const bool other = Guarded([] {});
  bool thrown = false;
  try {
    CHECK(3 == 4);
  } catch (const CheckFailure& failure) {
    thrown = std::string(failure.what()).find("3 == 4") != std::string::npos;
  }
  const bool told = Heard().size() == 1 && Heard()[0].find("1 == 2") != std::string::npos;
  std::exit(!passed && other && thrown && told ? 0 : 1);
}

TEST(CheckDeathTest, InALibraryAFailedCheckThrowsAndAGuardTellsOfIt) {
  EXPECT_EXIT(FailInLibrary(), ::testing::ExitedWithCode(0), "");
}

std::string ErrorOf(std::string_view text) {
  return std::string(ParseJson<nlohmann::json>(text, "costs.json").status().message());
}

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(JsonText, FaultIsNamedByLineColumnAndCause) {
  const std::string begin = "costs.json: expected JSON, line 2, column ";
  const auto error = [](std::string_view value) { return ErrorOf("{\"a\": 1,\n \"é\": " + std::string(value) + "}"); };
  EXPECT_EQ(error("NaN"), begin + "7: got NaN, which JSON does not have");
  EXPECT_EQ(error("-Infinity"), begin + "7: got -Infinity, which JSON does not have");
  EXPECT_EQ(error("1 // one"), begin + "9: got a comment, which JSON does not have");
  EXPECT_EQ(error("1, /* two */"), begin + "10: got a comment, which JSON does not have");
  EXPECT_EQ(error("1, "), begin + "10: got a comma before }");
  EXPECT_EQ(error("[1, 2,]"), begin + "13: got a comma before ]");
  EXPECT_EQ(error("True"), begin + "7: got True, which is Python's; JSON's is true");
  EXPECT_EQ(error("None"), begin + "7: got None, which is Python's; JSON's is null");
  EXPECT_EQ(error("'x'"), begin + "7: got a single quote; JSON has double ones");
  EXPECT_EQ(error("1e999"), begin + "7: got 1e999, which is beyond the range of float64");
  EXPECT_EQ(error("0x10"), begin + "7: got 0x10");
  EXPECT_EQ(error("\"\xFF\""), begin + "8: got byte 0xff, which is no UTF-8");
  EXPECT_EQ(error("\"\\ud83d\""), begin + "8: got \\ud83d, half of a character (a lone surrogate)");
  EXPECT_EQ(error("\"a\nb\""), begin + "9: got the control character 0x0a");
}

TEST(JsonText, ATextThatEndsTooEarlyAndAnEmptyOneAreNamedSo) {
  EXPECT_EQ(ErrorOf("{\"a\": 1"), "costs.json: expected JSON, line 1, column 8: got the end of the text");
  EXPECT_EQ(ErrorOf(" \n"), "costs.json: expected JSON, line 2, column 1: got an empty text");
  EXPECT_EQ(ErrorOf(""), "costs.json: expected JSON, line 1, column 1: got an empty text");
}

TEST(JsonText, ATextThatIsTooDeepIsRefusedWhereItIs) {
  const std::string deepest = Repeated("[", kDeepestJson) + Repeated("]", kDeepestJson);
  EXPECT_TRUE(ParseJson<nlohmann::json>(deepest, "costs.json").ok());
  const std::string got = "more than 64 lists and objects in each other";
  EXPECT_EQ(ErrorOf("[\n" + deepest + "]"), "costs.json: expected JSON, line 2, column 64: got " + got);
  EXPECT_EQ(ErrorOf(Repeated("{\"a\":", 100'000)), "costs.json: expected JSON, line 1, column 321: got " + got);
  EXPECT_EQ(ErrorOf("{x" + Repeated("[", 100'000)), "costs.json: expected JSON, line 1, column 2: got x");
  EXPECT_TRUE(ParseJson<nlohmann::json>("\"\\\"" + Repeated("[", 100) + "\"", "costs.json").ok()) << "within a text";
}

TEST(JsonText, AValueIsShownCutAndInOneLine) {
  EXPECT_EQ(ShownJson(nlohmann::json{{"a", "\xE2\x80\xAE\n"}}), "{\"a\":\"\\u202e\\n\"}");
  EXPECT_EQ(ShownJson(nlohmann::json(std::string(5'000, 'x'))).size(), 200u);
}

TEST(ParseAddress, TakesNamesAndBothKindsOfNumbers) {
  for (const char* text : {"eu.example.com:7077", "10.0.0.1:0", "[::1]:65535", "[2001:db8::2]:443"}) {
    const auto address = ParseAddress("--listen", text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->Text(), text);
  }
  EXPECT_EQ(ParseAddress("--listen", "[::1]:80")->host, "::1");
  EXPECT_EQ(ParseAddress("--listen", "[::1]:80")->port, 80);
}

TEST(ParseAddress, RefusesEverythingElseAndQuotesIt) {
  for (const char* text : {"", "host", ":80", "host:", "host:-1", "host:65536", "host:http", "[::1]", "[]:80", "[:80",
                           "[host]:80", "[::1:80"}) {
    const auto address = ParseAddress("--listen", text);
    EXPECT_TRUE(absl::IsInvalidArgument(address.status())) << text;
    EXPECT_THAT(std::string(address.status().message()), HasSubstr("got '" + std::string(text) + "'"));
  }
}

TEST(ParseAddress, NamesTheFlag) {
  EXPECT_EQ(ParseAddress("--http", "host").status().message(),
            "--http: expected HOST:PORT with a port from 0 to 65535, got 'host'");
}

TEST(ParseAddress, DoesWithoutSpacesAroundItAndASlashAtItsEnd) {
  for (const char* text : {" eu:7077", "eu:7077\r\n", "\teu:7077/ "}) {
    const auto address = ParseAddress("coordinator", text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->Text(), "eu:7077");
  }
  EXPECT_EQ(ParseAddress("--coordinator", "e u:7077").status().message(),
            "--coordinator: expected HOST:PORT without spaces inside, got 'e u:7077'");
}

TEST(ParseAddress, SaysThatAUrlIsNoAddress) {
  for (const std::string scheme : {"http", "https", "grpc", "tcp"}) {
    const std::string url = scheme + "://10.0.0.1:7077/";
    EXPECT_EQ(ParseAddress("--coordinator", url).status().message(),
              "--coordinator: expected HOST:PORT without " + scheme + "://, got '" + url + "'");
  }
}

TEST(ParseAddress, AsksForBracketsAroundIpv6) {
  EXPECT_THAT(std::string(ParseAddress("--listen", "2001:db8::2:443").status().message()),
              HasSubstr("in brackets, [2001:db8::2]:443"));
}

// Bound to a free port of the loopback; listens once the test calls listen().
class ListenFailure : public ::testing::Test {
 protected:
  ListenFailure() : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(descriptor_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~ListenFailure() override { close(descriptor_); }

  int descriptor_;
  int port_ = 0;
};

TEST_F(ListenFailure, OfAPortThatIsTakenSaysHowToFindTheProgram) {
  ASSERT_EQ(listen(descriptor_, 1), 0);
  EXPECT_EQ(
      WhyNotListening("127.0.0.1", port_),
      absl::StrCat("127.0.0.1:", port_, " is taken by another program: ss -ltnp 'sport = :", port_, "' names it"));
}

TEST_F(ListenFailure, OfAnotherMachinesAddressAsksAboutTheAddress) {
  ASSERT_EQ(listen(descriptor_, 1), 0);
  EXPECT_EQ(WhyNotListening("192.0.2.1", port_),
            absl::StrCat("cannot listen on 192.0.2.1:", port_, "; is it an address of this machine?"));
}

// A root with files of the proc and cgroup file systems.
class Root {
 public:
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ / path).parent_path());
    folder_.Write(path, text);
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

TEST(HostLimits, AreTheLeastOfAllGroupsAbove) {
  const Root root;
  root.Write("proc/self/cgroup", "0::/site/worker\n");
  root.Write("sys/fs/cgroup/site/worker/cpu.max", "max 100000\n");
  root.Write("sys/fs/cgroup/site/cpu.max", "150000 100000\n");
  root.Write("sys/fs/cgroup/site/worker/memory.max", "5000\n");
  root.Write("sys/fs/cgroup/site/worker/memory.current", "4500\n");
  root.Write("sys/fs/cgroup/site/worker/memory.stat", "anon 1000\ninactive_file 700\n");
  root.Write("sys/fs/cgroup/site/memory.max", "max\n");
  root.Write("sys/fs/cgroup/site/worker/pids.max", "max\n");
  root.Write("sys/fs/cgroup/site/worker/pids.current", "8\n");
  root.Write("sys/fs/cgroup/site/pids.max", "100\n");
  root.Write("sys/fs/cgroup/site/pids.current", "70\n");
  const GroupLimits limits = ReadGroupLimits(root.path());
  EXPECT_EQ(limits.cores, 1.5);
  EXPECT_EQ(limits.memory_bytes, 1200);
  EXPECT_EQ(limits.threads, 30);
  EXPECT_EQ(limits.threads_file, root.path() + "/sys/fs/cgroup/site/pids.max");
}

TEST(HostLimits, InAContainerTheFoldersBeginAtItsOwnGroup) {
  const Root root;
  root.Write("proc/self/cgroup", "0::/docker/0123456789\n");
  root.Write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(ReadGroupLimits(root.path()).cores, 0.5);
}

TEST(HostLimits, OfVersion1) {
  const Root root;
  root.Write("proc/self/cgroup", "7:cpuacct,cpu:/site\n4:memory:/site\n1:name=systemd:/\n");
  root.Write("sys/fs/cgroup/cpu/site/cpu.cfs_quota_us", "400000\n");
  root.Write("sys/fs/cgroup/cpu/site/cpu.cfs_period_us", "100000\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.Write("sys/fs/cgroup/memory/site/memory.limit_in_bytes", "9000\n");
  root.Write("sys/fs/cgroup/memory/site/memory.usage_in_bytes", "2000\n");
  const GroupLimits limits = ReadGroupLimits(root.path());
  EXPECT_EQ(limits.cores, 4);
  EXPECT_EQ(limits.memory_bytes, 7000);
}

TEST(HostLimits, MissingFilesLimitNothing) {
  const Root root;
  EXPECT_EQ(ReadGroupLimits(root.path()).cores, std::numeric_limits<double>::infinity());
  EXPECT_EQ(UsableMemoryBytes(root.path()), std::numeric_limits<int64_t>::max());
  root.Write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   10 kB\n");
  EXPECT_EQ(UsableMemoryBytes(root.path()), 10240);
}

TEST(HostLimits, OfThisMachineArePossible) {
  EXPECT_GE(UsableCores(), 1);
  EXPECT_GT(UsableMemoryBytes(), int64_t{1} << 20);
}

}  // namespace
}  // namespace causeway::core
