// The text of GET /metrics.
#include "server/status/metrics_text.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "server/status/host_status.h"
#include "server/status/status_board.h"
#include "tests/core/fake_clock.h"
#include "tests/formats/temporary_folder.h"
#include "tests/server/status/large_snapshot.h"

namespace causeway::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

StatusSnapshot Snapshot() {
  StatusSnapshot snapshot = LargeSnapshot(2, 2);
  snapshot.version = "1.2.3";
  snapshot.host = {1000, 400, 1234};
  snapshot.times.rounds.Add(0.2);
  snapshot.times.rounds.Add(1000);
  snapshot.times.up.Add(0.02);
  snapshot.syncs = {.count = 3, .seconds = 4.5, .slowest_s = 4};
  snapshot.scrub = {.passes = 2, .bytes = 500, .ended_unix_ms = 1'500'000, .damages = {}};
  snapshot.others.standbys = {{"b:1", true, true, "", 300, 4, 0.5}};
  snapshot.alarms = {{.name = "site_silent", .site = "a"}, {.name = "site_silent", .site = "b"}};
  return snapshot;
}

std::string Text(const StatusSnapshot& snapshot) {
  return MetricsText(snapshot, {.start_unix_s = 10, .resident_bytes = 20, .cpu_s = 30}, 4);
}

TEST(MetricsText, HasWhatOperatorsRelyOn) {
  const std::string text = Text(Snapshot());
  for (const char* line : {
           "causeway_site_up_bytes_total{site=\"datacenter-00\"} 123456789012\n",
           "causeway_site_step{site=\"datacenter-01\"} 123456\n",
           "causeway_site_steps_total{site=\"datacenter-01\"} 0\n",
           "causeway_site_contributing{site=\"datacenter-00\"} 1\n",
           "causeway_site_state{site=\"datacenter-00\",state=\"training\"} 1\n",
           "causeway_site_state{site=\"datacenter-00\",state=\"gone\"} 0\n",
           "causeway_run_state{state=\"training\"} 1\n",
           "causeway_run_state{state=\"paused\"} 0\n",
           "causeway_sites{state=\"training\"} 2\n",
           "causeway_fragment_version{fragment=\"1\"} 6001\n",
           "causeway_fragment_contributors{fragment=\"1\"} 2\n",
           "causeway_site_cosine_ratio{site=\"datacenter-00\"} 0.123456789\n",
           "causeway_fragment_gradient_norm{fragment=\"1\"} 0.123456789\n",
           "causeway_fragment_outer_correlation_ratio{fragment=\"1\"} 0.123456789\n",
           "causeway_fragment_outer_amplification_ratio{fragment=\"1\"} 2.123456789\n",
           "causeway_fragment_outer_amplification_predicted_ratio{fragment=\"1\"} 2.123456789\n",
           "causeway_fragment_outer_lr_effective{fragment=\"1\"} 1.23456789\n",
           "causeway_quorum_sites 32\n",
           "causeway_rounds_total 400000\n",
           "causeway_disk_free_bytes 1000\n",
           "causeway_disk_reserved_bytes 400\n",
           "causeway_fsync_seconds_count 3\n",
           "causeway_fsync_seconds_sum 4.5\n",
           "causeway_fsync_seconds{quantile=\"1\"} 4\n",
           "causeway_scrub_passes_total 2\n",
           "causeway_scrub_bytes 500\n",
           "causeway_scrub_ended_timestamp_seconds 1500\n",
           "causeway_standby_up{standby=\"b:1\"} 1\n",
           "causeway_standby_behind_seconds{standby=\"b:1\"} 0.5\n",
           "causeway_standby_behind_bytes{standby=\"b:1\"} 300\n",
           "causeway_certificate_expiry_timestamp_seconds 1234\n",
           "causeway_alarm{alarm=\"site_silent\",severity=\"warning\"} 1\n",
           "causeway_build_info{version=\"1.2.3\"} 1\n",
           "causeway_http_event_streams 4\n",
           "causeway_round_seconds_bucket{le=\"0.1\"} 0\n",
           "causeway_round_seconds_bucket{le=\"0.25\"} 1\n",
           "causeway_round_seconds_bucket{le=\"+Inf\"} 2\n",
           "causeway_round_seconds_count 2\n",
           "causeway_transfer_seconds_bucket{direction=\"up\",le=\"0.025\"} 1\n",
           "causeway_transfer_seconds_count{direction=\"down\"} 0\n",
           "causeway_merge_seconds_count 0\n",
           "process_start_time_seconds 10\n",
           "process_resident_memory_bytes 20\n",
           "process_cpu_seconds_total 30\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(MetricsText, NamesAndTypesAreThoseOfPrometheusConventions) {
  std::istringstream lines(Text(Snapshot()));
  std::set<std::string> families, series;
  std::string line, family, type;
  const std::regex name_pattern("(causeway|process)_[a-z0-9_]+");
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string hash, word;
    words >> hash >> word;
    if (hash == "#") {
      words >> family;
      if (word == "TYPE") {
        words >> type;
        EXPECT_TRUE(families.insert(family).second) << family << " comes twice";
        EXPECT_TRUE(std::regex_match(family, name_pattern)) << family;
        EXPECT_EQ(type == "counter", family.ends_with("_total")) << family;
      } else {
        EXPECT_FALSE(std::string(std::istreambuf_iterator<char>(words), {}).empty()) << family << " has no help";
      }
      continue;
    }
    EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << line << " comes twice";
    EXPECT_TRUE(line.starts_with(family)) << line;
  }
  EXPECT_GT(families.size(), 35u);
}

TEST(MetricsText, LabelsAreEscaped) {
  StatusSnapshot snapshot = Snapshot();
  snapshot.sites[0].name = "a\"b\\c\nd";
  EXPECT_THAT(Text(snapshot), HasSubstr("{site=\"a\\\"b\\\\c\\nd\"}"));
}

TEST(MetricsText, ASiteThatIsGoneKeepsItsCountersAndItsState) {
  StatusSnapshot snapshot = Snapshot();
  snapshot.sites[0].state = core::SiteState::kGone;
  const std::string text = Text(snapshot);
  EXPECT_THAT(text, HasSubstr("causeway_site_up_bytes_total{site=\"datacenter-00\"}"));
  EXPECT_THAT(text, HasSubstr("causeway_site_state{site=\"datacenter-00\",state=\"gone\"} 1\n"));
  for (const char* gauge : {"causeway_site_loss", "causeway_site_utilization_ratio", "causeway_site_contributing"}) {
    EXPECT_THAT(text, Not(HasSubstr(std::string(gauge) + "{site=\"datacenter-00\"}"))) << gauge;
    EXPECT_THAT(text, HasSubstr(std::string(gauge) + "{site=\"datacenter-01\"}")) << gauge;
  }
}

TEST(MetricsText, WhatIsNotKnownStaysOut) {
  StatusSnapshot snapshot;
  snapshot.sites = {{.name = "eu", .state = core::SiteState::kTraining}};  // has not reported
  const std::string text = Text(snapshot);
  for (const char* name :
       {"causeway_site_loss{", "causeway_site_utilization_ratio{", "causeway_eval_loss", "causeway_certificate",
        "causeway_disk_free", "causeway_alarm", "causeway_site_cosine_ratio{", "causeway_fragment_outer"}) {
    EXPECT_THAT(text, Not(HasSubstr(name)));
  }
}

// The machine's own figures.

// PEM of a certificate that ends after `seconds`.
std::string CertificateFor(long seconds) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), seconds);
  X509_set_pubkey(certificate.get(), key.get());
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_X509(bio.get(), certificate.get());
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, size);
}

TEST(HostStatus, ACertificateEndsWhenItSays) {
  const auto end = CertificateExpiry(CertificateFor(86'400));
  ASSERT_TRUE(end);
  EXPECT_NEAR(static_cast<double>(*end - std::time(nullptr)), 86'400, 10);
  EXPECT_FALSE(CertificateExpiry("no certificate"));
  EXPECT_FALSE(CertificateExpiry(""));
}

TEST(HostStatus, ACertificateThatIsReplacedIsReadAgain) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/cert.pem";
  std::ofstream(path) << CertificateFor(1'000);
  HostWatch watch({.state_dir = folder.path(), .reserved_bytes = 7, .certificate = path});
  const HostStatus before = watch.Read();
  std::ofstream(path) << CertificateFor(100'000);
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  const HostStatus after = watch.Read();
  EXPECT_GT(*after.certificate_expires_unix_s, *before.certificate_expires_unix_s + 90'000);
  EXPECT_GT(*after.disk_free_bytes, 0);
  EXPECT_EQ(after.disk_reserved_bytes, 7);
}

TEST(HostStatus, WithoutTlsThereIsNoCertificate) {
  HostWatch watch(HostFiles{});
  EXPECT_FALSE(watch.Read().certificate_expires_unix_s);
  EXPECT_FALSE(watch.Read().disk_free_bytes);
}

TEST(HostStatus, ThisProcessHasMemoryTimeAndABegin) {
  const ProcessStatus process = ReadProcessStatus();
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_GT(process.resident_bytes, 1 << 20);
  EXPECT_LT(process.resident_bytes, int64_t{1} << 40);
  EXPECT_GE(process.cpu_s, 0);
  EXPECT_LE(process.start_unix_s, now + 2);
  EXPECT_GT(process.start_unix_s, now - 3600);
}

TEST(HostWatch, NamesAStateDirectoryThatIsGone) {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  std::filesystem::create_directory(path);
  HostWatch watch({.state_dir = path});
  EXPECT_EQ(watch.Read().missing_dir, "");
  std::filesystem::remove_all(path);
  EXPECT_EQ(watch.Read().missing_dir, path);
}

// The answers that readers get from the board.

class StatusBoardTest : public ::testing::Test {
 protected:
  core::FakeClock clock_{1'000};
  StatusBoard board_{{.version = "1.2.3", .host = {}, .clock = &clock_}};
};

TEST_F(StatusBoardTest, ThereIsNothingToReadBeforeTheFirstPage) {
  EXPECT_EQ(board_.Status(), nullptr);
  EXPECT_EQ(board_.Timeline(), nullptr);
  EXPECT_EQ(board_.Metrics(), nullptr);
  EXPECT_TRUE(board_.Healthy().ok) << "it starts, and answers";
  EXPECT_FALSE(board_.Ready().ok);
}

TEST_F(StatusBoardTest, OneRenderingIsSharedByAllReadersOfAPage) {
  board_.Publish({.state = "training"});
  const SharedText status = board_.Status();
  EXPECT_EQ(board_.Status(), status);
  EXPECT_NE(board_.Status(Details::kFull), status);
  EXPECT_EQ(json::parse(*status).at("version"), "1.2.3");
  board_.Publish({.state = "paused"});
  EXPECT_EQ(json::parse(*board_.Status()).at("state"), "paused");
  EXPECT_EQ(json::parse(*status).at("state"), "training") << "who reads it may keep it";
}

TEST_F(StatusBoardTest, AlarmsKeepTheirTimesFromPageToPage) {
  StatusSnapshot paused{.state = "paused", .unix_ms = 100, .paused = true};
  board_.Publish(paused);
  paused.unix_ms = 350;
  board_.Publish(paused);
  const json alarms = json::parse(*board_.Status()).at("alarms");
  ASSERT_EQ(alarms.size(), 1u);
  EXPECT_EQ(alarms[0].at("since_unix_ms"), 100);
}

TEST_F(StatusBoardTest, ItIsHealthyUntilItFailsOrFallsSilent) {
  board_.Publish({});
  clock_.Advance(StatusBoard::kSilentMs);
  EXPECT_TRUE(board_.Healthy().ok);
  clock_.Advance(1);
  EXPECT_FALSE(board_.Healthy().ok);
  EXPECT_NE(board_.Healthy().reason, "");
  board_.Publish({.failure = "the disk is full"});
  EXPECT_EQ(board_.Healthy().reason, "the disk is full");
}

TEST_F(StatusBoardTest, ItIsReadyOnceSitesAreTakenAndNotWhileItStops) {
  board_.Publish({});
  board_.SetNotReady("restores the run's state");
  EXPECT_EQ(board_.Ready().reason, "restores the run's state");
  board_.SetReady();
  EXPECT_TRUE(board_.Ready().ok);
  board_.SetNotReady("stops");
  EXPECT_EQ(board_.Ready().reason, "stops");
  EXPECT_TRUE(board_.Healthy().ok);
}

// For the thread sanitizer: readers and the coordinator at once, on data that they share.
TEST_F(StatusBoardTest, ReadersAndTheCoordinatorMeetAtThePageAlone) {
  board_.Publish(LargeSnapshot(4, 4));
  std::vector<std::jthread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        EXPECT_FALSE(board_.Status()->empty());
        EXPECT_FALSE(board_.Timeline()->empty());
        EXPECT_FALSE(board_.Metrics()->empty());
      }
    });
  }
  RoundLog log;
  for (core::Version version = 1; version <= 100; ++version) {
    StatusSnapshot snapshot = LargeSnapshot(4, 4);
    log.Arrived(0, version, "eu", 1, 2);
    log.Decided(0, version, "", 3);
    snapshot.rounds = log.rounds();
    board_.Publish(std::move(snapshot));
    log.Merged(0, {version, 1}, 4);
  }
}

}  // namespace
}  // namespace causeway::server
