// The machine's own figures.
#include "server/status/host_status.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/formats/temporary_folder.h"

namespace causeway::server {
namespace {

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

}  // namespace
}  // namespace causeway::server
