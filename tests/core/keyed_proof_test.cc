#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "core/digest.h"

namespace causeway::core {
namespace {

TEST(KeyedProof, IsHmacSha256) {  // RFC 4231, test case 2
  EXPECT_EQ(absl::BytesToHexString(KeyedProof("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(KeyedProof, OfAnotherSecretIsAnother) {
  const std::string proof = KeyedProof("secret", "text");
  EXPECT_TRUE(SameSecret(proof, KeyedProof("secret", "text")));
  EXPECT_FALSE(SameSecret(proof, KeyedProof("Secret", "text")));
  EXPECT_FALSE(SameSecret(proof, proof.substr(1)));
  EXPECT_FALSE(SameSecret(proof, ""));
}

}  // namespace
}  // namespace causeway::core
