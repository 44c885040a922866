#include "codecs/codec.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "codecs/block_codec.h"
#include "codecs/other_codecs.h"
#include "codecs/simd/simd.h"
#include "core/check.h"

namespace causeway::codecs {
namespace {

const BlockFormat* const kFormats[] = {&kFloat32Format,     &kBfloat16Format,   &kInt8Format,
                                       &kInt4Format,        &kE3m0Format,       &kSignFormat,
                                       &kRotatedSignFormat, &kRotatedLm2Format, &kRotatedLm4Format};

BlockLoops LoopsFor(core::CodecId id, Target target) {
  switch (target) {
    case Target::kScalar: return {};
    case Target::kAvx2: return simd::Avx2Loops(id);
    case Target::kAvx512: return simd::Avx512Loops(id);
  }
  return {};
}

constexpr size_t kNumNumbers =
    1 + static_cast<size_t>(*std::max_element(std::begin(core::kAllCodecs), std::end(core::kAllCodecs)));

// By number and target; onebit_adam_sign has one version.
struct Registry {
  Registry() {
    for (Target target : kAllTargets) {
      std::vector<const Codec*>& of_target = codecs[static_cast<size_t>(target)];
      of_target.resize(kNumNumbers);
      for (const BlockFormat* format : kFormats) {
        blocks.push_back(std::make_unique<BlockCodec>(*format, LoopsFor(format->id, target)));
        of_target[static_cast<size_t>(format->id)] = blocks.back().get();
      }
      for (core::CodecId id : core::kTopkCodecs) {
        others.push_back(MakeTopk(core::TopkEntries(id), target));
        of_target[static_cast<size_t>(id)] = others.back().get();
      }
      of_target[static_cast<size_t>(core::CodecId::kOnebitAdamSign)] = &OnebitAdamSign();
    }
  }

  std::vector<std::unique_ptr<Codec>> blocks, others;
  std::vector<const Codec*> codecs[std::size(kAllTargets)];
};

Target ChooseTarget() {
  Target best = Target::kScalar;
  const char* wanted = std::getenv("CAUSEWAY_SIMD");
  for (Target target : kAllTargets) {
    if (Supported(target)) best = target;
    if (wanted != nullptr && std::string_view(wanted) == TargetName(target)) return best;
  }
  if (wanted == nullptr || *wanted == '\0') return best;
  std::fprintf(stderr, "CAUSEWAY_SIMD: expected scalar, avx2 or avx512, got %s\n", wanted);
  std::exit(2);
}

}  // namespace

void Codec::DecodeSum(std::span<const DecodeTerm> terms, int64_t count, float* sum) const {
  std::fill_n(sum, rotates() ? core::BlocksFor(count) * core::kBlockValues : count, 0.0f);
  for (const DecodeTerm& term : terms) {
    Decode({.scales = term.scales, .codes = term.codes, .values = sum, .count = count, .add = term.weight});
  }
}

const char* TargetName(Target target) {
  constexpr const char* kNames[] = {"scalar", "avx2", "avx512"};
  return kNames[static_cast<size_t>(target)];
}

bool Supported(Target target) {
#if defined(__x86_64__)
  // The wider loads of AVX-512 alone are not enough: masks of bytes, dwords by sign, and 128-bit forms are used, too.
  if (target == Target::kAvx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (target == Target::kAvx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
  }
#endif
  return target == Target::kScalar;
}

Target ActiveTarget() {
  static const Target target = ChooseTarget();
  return target;
}

const Codec& GetCodec(core::CodecId id) { return GetCodec(id, ActiveTarget()); }

const Codec& GetCodec(core::CodecId id, Target target) {
  static const Registry registry;
  CHECK(Supported(target));
  const std::vector<const Codec*>& of_target = registry.codecs[static_cast<size_t>(target)];
  const auto number = static_cast<size_t>(id);
  CHECK(number < of_target.size() && of_target[number] != nullptr);
  return *of_target[number];
}

}  // namespace causeway::codecs
