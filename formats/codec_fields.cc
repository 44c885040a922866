#include "formats/run_fields.h"

namespace causeway::formats {
namespace {

using core::CodecId;
using enum Holds;
using enum Set;
using Texts = std::vector<std::string>;

CodecId ReadCodecName(const std::string& path, const std::string& name, FieldCheck& check) {
  const std::optional<CodecId> codec = core::CodecFromName(name);
  check.Expect(codec.has_value(), path, absl::StrCat("one of ", core::AllCodecNames()), name);
  return codec.value_or(CodecId::kFloat32);
}

// The codecs from which `auto` may choose, best first; a cheaper one has to save something. All must have one domain: a
// residual is in the domain of its codec, and continues when the codec changes.
std::vector<CodecId> ReadAllowed(const std::string& path, const Texts& names, FieldCheck& check) {
  if (names.empty()) return {CodecId::kRotatedLm4, CodecId::kRotatedLm2, CodecId::kRotatedSign};
  std::vector<CodecId> allowed;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string at = absl::StrCat(path, "[", i, "]");
    const CodecId codec = ReadCodecName(at, names[i], check);
    check.Expect(core::TopkEntries(codec) == 0 && codec != CodecId::kOnebitAdamSign, at,
                 "a codec that auto can change to in the middle of a run", names[i]);
    if (i > 0) {
      const CodecId better = allowed.back();
      check.Expect(core::Rotates(codec) == core::Rotates(better), at,
                   absl::StrCat(core::Rotates(better) ? "one that rotates" : "one that does not rotate", ", like ",
                                core::CodecName(better), ": residuals cannot pass from one kind to the other"),
                   names[i]);
      check.Expect(
          core::CodeBits(codec) < core::CodeBits(better), at,
          absl::StrCat("fewer bits than the ", core::CodeBits(better), " of ", core::CodecName(better), " before it"),
          absl::StrCat(names[i], " with ", core::CodeBits(codec)));
    }
    allowed.push_back(codec);
  }
  return allowed;
}

struct Leg {
  const char* name;
  const char* allowed_name;  // what auto may choose from
  CodecId* codec;
  std::vector<CodecId>* allowed;
  std::string text;
  Texts allowed_texts;
  bool may_be_sparse = false;
};

Leg MakeLeg(const char* name, const char* allowed_name, CodecId* codec, std::vector<CodecId>* allowed) {
  Leg leg{name, allowed_name, codec, allowed, allowed->empty() ? core::CodecName(*codec) : kAuto, {}};
  if (!allowed->empty() && core::TopkEntries(allowed->front()) > 0) {
    leg.text = kSparse;
    return leg;
  }
  for (const CodecId one : *allowed) leg.allowed_texts.push_back(core::CodecName(one));
  return leg;
}

void ReadLeg(const Leg& leg, core::SyncMode mode, const Fields& fields, FieldCheck& check) {
  const std::string path = fields.Path(leg.name), allowed_path = fields.Path(leg.allowed_name);
  leg.allowed->clear();
  if (leg.text != kAuto) {
    check.Expect(leg.allowed_texts.empty(), allowed_path, absl::StrCat("it only with ", leg.name, ": auto"),
                 absl::StrCat("it with ", leg.name, ": ", leg.text));
    if (leg.text == kSparse && leg.may_be_sparse) return;
    *leg.codec = ReadCodecName(path, leg.text, check);
    return;
  }
  // In quorum mode a late contribution has another base than its round, and a round has one codec.
  check.Expect(mode == core::SyncMode::kSynchronous, path, "a codec's name (auto is for mode: synchronous)", leg.text);
  *leg.allowed = ReadAllowed(allowed_path, leg.allowed_texts, check);
  *leg.codec = leg.allowed->back();
}

// `down: sparse` leaves the codec to each round's number of contributions, and that of min_sites to RunFields.
void ReadSparse(const Leg& down, CodecId up, const Fields& fields, FieldCheck& check) {
  check.Expect(core::TopkEntries(up) > 0, fields.Path(down.name), "codec.up: topk with it, or one of its family",
               absl::StrCat("it with codec.up: ", core::CodecName(up)));
  down.allowed->assign(std::rbegin(core::kTopkCodecs), std::rend(core::kTopkCodecs));
}

}  // namespace

void CodecFields(core::CodecConfig& codec, core::SyncMode mode, Fields& fields) {
  Leg up = MakeLeg("up", "allow_up", &codec.up, &codec.allow_up);
  Leg down = MakeLeg("down", "allow_down", &codec.down, &codec.allow_down);
  down.may_be_sparse = true;
  const std::string expected = absl::StrCat("auto | ", core::AllCodecNames());
  fields.Any({"up", kByRound, "towards the coordinator; auto: the best of allow_up that fits a round"}, &up.text,
             expected);
  fields.Any({"down", kByRound, "back to the sites; sparse: as topk with room for what all of a round's sites sent"},
             &down.text, absl::StrCat("auto | sparse | ", core::AllCodecNames()));
  fields.Share({"feedback_up", kByRound, "share of what the codec dropped that is added to the next send; 0: off"},
               &codec.feedback_up);
  fields.Share({"feedback_down", kByRound, "the same of the coordinator's updates"}, &codec.feedback_down);
  fields.Any({"zstd", kByRound, "compresses chunks where it makes them smaller"}, &codec.zstd, "true | false");
  Texts kinds;
  for (const core::TensorKind kind : codec.exempt) kinds.push_back(core::TensorKindName(kind));
  fields.Any({"exempt", kFixed, "kinds of tensors that stay at bfloat16"}, &kinds,
             "of matrix, embedding, norm, head, expert, buffer");
  for (Leg* leg : {&up, &down}) {
    if (!fields.Wants(!leg->allowed_texts.empty())) continue;
    fields.Any({leg->allowed_name, kByRound, "what auto may choose from, best first", kNotYet}, &leg->allowed_texts,
               "codecs, all rotated or none");
  }
  FieldCheck* const check = fields.check();
  if (check == nullptr) return;
  ReadLeg(down, mode, fields, *check);
  check->Expect(codec.down != CodecId::kOnebitAdamSign, fields.Path("down"),
                "another codec (it is for the up leg only)", down.text);
  ReadLeg(up, mode, fields, *check);
  if (down.text == kSparse) ReadSparse(down, codec.up, fields, *check);
  codec.exempt.clear();
  for (size_t i = 0; i < kinds.size(); ++i) {
    codec.exempt.push_back(check->OneOf(fields.Path(absl::StrCat("exempt[", i, "]")), kinds[i], kTensorKinds));
  }
}

}  // namespace causeway::formats
