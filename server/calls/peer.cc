#include "server/calls/peer.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <openssl/bn.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace causeway::server {

std::string Peer::Name() const { return names.empty() ? address.substr(0, address.rfind(':')) : names.front(); }

std::string Peer::Address() const {
  const std::string plain = absl::StrReplaceAll(address, {{"%5B", "["}, {"%5D", "]"}});
  for (const char* scheme : {"ipv4:", "ipv6:"}) {
    if (absl::StartsWith(plain, scheme)) return plain.substr(sizeof("ipv4:") - 1);
  }
  return plain;
}

std::string NormalSerial(const std::string& hex) {
  const size_t begin = std::min(hex.find_first_not_of('0'), hex.size());
  return absl::AsciiStrToLower(hex.substr(begin));
}

CertificateFacts FactsOf(const std::string& pem) {
  CertificateFacts facts;
  const std::unique_ptr<BIO, int (*)(BIO*)> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  const std::unique_ptr<X509, void (*)(X509*)> certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr),
                                                           X509_free);
  if (certificate == nullptr) return facts;
  const std::unique_ptr<BIGNUM, void (*)(BIGNUM*)> number(
      ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate.get()), nullptr), BN_free);
  if (char* hex = number == nullptr ? nullptr : BN_bn2hex(number.get()); hex != nullptr) {
    facts.serial = NormalSerial(hex);
    OPENSSL_free(hex);
  }
  const X509_NAME* subject = X509_get_subject_name(certificate.get());
  if (const int at = X509_NAME_get_index_by_NID(subject, NID_organizationalUnitName, -1); at >= 0) {
    const ASN1_STRING* unit = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
    facts.unit.assign(reinterpret_cast<const char*>(ASN1_STRING_get0_data(unit)),
                      static_cast<size_t>(ASN1_STRING_length(unit)));
  }
  return facts;
}

Peer PeerOf(const grpc::ServerContextBase& context, const std::string& call) {
  Peer peer{.address = context.peer(), .call = call};
  if (const auto auth = context.auth_context(); auth != nullptr) {
    for (const char* property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_PEER_DNS_PROPERTY_NAME}) {
      for (const grpc::string_ref& name : auth->FindPropertyValues(property)) {
        std::string text(name.data(), name.size());
        if (std::ranges::count(peer.names, text) == 0) peer.names.push_back(std::move(text));
      }
    }
    for (const grpc::string_ref& pem : auth->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME)) {
      CertificateFacts facts = FactsOf(std::string(pem.data(), pem.size()));
      peer.unit = std::move(facts.unit);
      peer.serial = std::move(facts.serial);
    }
  }
  const auto header = context.client_metadata().find("authorization");
  if (header == context.client_metadata().end()) return peer;
  constexpr size_t kScheme = sizeof("Bearer ") - 1;
  const std::string value(header->second.data(), header->second.size());
  if (absl::StartsWithIgnoreCase(value, "Bearer ")) peer.token = value.substr(kScheme);
  return peer;
}

}  // namespace causeway::server
