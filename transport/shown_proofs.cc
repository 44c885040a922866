#include "transport/shown_proofs.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace causeway::transport {

void ShownProofs::Keep(Proofs& proofs, core::FragmentId fragment, core::Version version, const std::string& proof) {
  if (proof.empty()) return;
  std::map<core::Version, std::string>& of_fragment = proofs[fragment];
  of_fragment[version] = proof;
  if (of_fragment.size() > kKept) of_fragment.erase(of_fragment.begin());
}

std::string ShownProofs::Find(const Proofs& proofs, core::FragmentId fragment, core::Version version) {
  const auto of_fragment = proofs.find(fragment);
  if (of_fragment == proofs.end()) return "";
  const auto found = of_fragment->second.find(version);
  return found == of_fragment->second.end() ? "" : found->second;
}

void ShownProofs::HasEpoch(const Epoch& epoch, const std::string& proof) {
  core::MutexLock lock(mutex_);
  epoch_ = epoch;
  epoch_proof_ = proof;
}

ShownProofs::Epoch ShownProofs::epoch() const {
  core::MutexLock lock(mutex_);
  return epoch_;
}

void ShownProofs::HasVersion(core::FragmentId fragment, core::Version version, const std::string& proof) {
  core::MutexLock lock(mutex_);
  Keep(versions_, fragment, version, proof);
}

void ShownProofs::HasAdmitted(core::FragmentId fragment, core::Version base, const std::string& proof) {
  core::MutexLock lock(mutex_);
  Keep(admissions_, fragment, base, proof);
}

void ShownProofs::AddTo(v1::Join* join) const {
  core::MutexLock lock(mutex_);
  join->set_epoch_proof(epoch_proof_);
  for (int p = 0; p < join->versions_size(); ++p) join->add_version_proofs(Find(versions_, p, join->versions(p)));
  for (int p = 0; p < join->admitted_size(); ++p) join->add_admission_proofs(Find(admissions_, p, join->admitted(p)));
}

// "e:EPOCH:LIFE:HEX", "v:FRAGMENT:VERSION:HEX", "a:FRAGMENT:BASE:HEX", with a space between.
std::string ShownProofs::Text() const {
  core::MutexLock lock(mutex_);
  std::string text;
  if (!epoch_proof_.empty()) {
    absl::StrAppend(&text, "e:", epoch_.epoch, ":", epoch_.life, ":", absl::BytesToHexString(epoch_proof_));
  }
  const auto add = [&](const char* kind, const Proofs& proofs) {
    for (const auto& [fragment, of_fragment] : proofs) {
      for (const auto& [version, proof] : of_fragment) {
        absl::StrAppend(&text, text.empty() ? "" : " ", kind, ":", fragment, ":", version, ":",
                        absl::BytesToHexString(proof));
      }
    }
  };
  add("v", versions_);
  add("a", admissions_);
  return text;
}

void ShownProofs::Restore(const std::string& text) {
  core::MutexLock lock(mutex_);
  for (const absl::string_view entry : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::vector<absl::string_view> fields = absl::StrSplit(entry, ':');
    Epoch epoch;
    if (fields.size() == 4 && fields[0] == "e" && absl::SimpleAtoi(fields[1], &epoch.epoch) &&
        absl::SimpleAtoi(fields[2], &epoch.life)) {
      epoch_ = epoch;
      epoch_proof_ = absl::HexStringToBytes(fields[3]);
    }
    core::FragmentId fragment = 0;
    core::Version version = 0;
    const bool is_entry = fields.size() == 4 && (fields[0] == "v" || fields[0] == "a") &&
                          absl::SimpleAtoi(fields[1], &fragment) && absl::SimpleAtoi(fields[2], &version);
    if (is_entry)
      Keep(fields[0] == "v" ? versions_ : admissions_, fragment, version, absl::HexStringToBytes(fields[3]));
  }
}

}  // namespace causeway::transport
