// The product's own declarations of NCCL (worker/ranks/nccl_communicator.h) against those of nccl.h, where that is.
#include <gtest/gtest.h>

#include "tests/worker/ranks/nccl_functions.h"
#include "worker/ranks/nccl_communicator.h"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#define HAS_NCCL_H 1
#include <nccl.h>
#endif

namespace causeway::worker {
namespace {

#ifdef HAS_NCCL_H

// The type of the product that stands for one of nccl.h.
template <typename T>
struct OursOf {
  using Type = T;
};
template <>
struct OursOf<ncclResult_t> {
  using Type = NcclResult;
};
template <>
struct OursOf<ncclDataType_t> {
  using Type = NcclType;
};
template <>
struct OursOf<ncclRedOp_t> {
  using Type = NcclReduction;
};
template <>
struct OursOf<ncclUniqueId> {
  using Type = NcclUniqueId;
};
template <>
struct OursOf<ncclUniqueId*> {
  using Type = NcclUniqueId*;
};
template <>
struct OursOf<ncclResult_t*> {
  using Type = NcclResult*;
};
template <>
struct OursOf<ncclComm_t> {
  using Type = NcclComm*;
};
template <>
struct OursOf<ncclComm_t*> {
  using Type = NcclComm**;
};
template <>
struct OursOf<ncclConfig_t*> {
  using Type = NcclConfig*;
};
template <>
struct OursOf<cudaStream_t> {
  using Type = void*;
};
template <typename Result, typename... Arguments>
struct OursOf<Result (*)(Arguments...)> {
  using Type = typename OursOf<Result>::Type (*)(typename OursOf<Arguments>::Type...);
};

#define FITS(name, member) \
  static_assert(std::is_same_v<OursOf<decltype(&name)>::Type, decltype(NcclApi::member)>, "other prototype: " #name);
EACH_NCCL_FUNCTION(FITS)
FITS(ncclSend, send)

static_assert(sizeof(NcclResult) == sizeof(ncclResult_t) && sizeof(NcclType) == sizeof(ncclDataType_t) &&
              sizeof(NcclReduction) == sizeof(ncclRedOp_t));
static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId) && sizeof(NcclUniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(static_cast<int>(NcclResult::kSuccess) == ncclSuccess &&
              static_cast<int>(NcclResult::kUnhandledCudaError) == ncclUnhandledCudaError &&
              static_cast<int>(NcclResult::kSystemError) == ncclSystemError &&
              static_cast<int>(NcclResult::kInternalError) == ncclInternalError &&
              static_cast<int>(NcclResult::kInvalidArgument) == ncclInvalidArgument &&
              static_cast<int>(NcclResult::kInvalidUsage) == ncclInvalidUsage &&
              static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError &&
              static_cast<int>(NcclResult::kInProgress) == ncclInProgress);
static_assert(static_cast<int>(NcclType::kInt8) == ncclInt8 && static_cast<int>(NcclType::kFloat32) == ncclFloat32);
static_assert(static_cast<int>(NcclReduction::kSum) == ncclSum);
static_assert(kFirstNcclVersion == NCCL_VERSION(2, 14, 0) && kFirstNcclVersion <= NCCL_VERSION_CODE);
static_assert(offsetof(NcclConfig, size) == offsetof(ncclConfig_t, size) &&
              offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version) &&
              offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking) &&
              sizeof(NcclConfig) <= sizeof(ncclConfig_t));

TEST(NcclHeaderTest, TheProductsDeclarationsAreThoseOfNccl) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(NcclConfig().magic, theirs.magic);
}

#else

TEST(NcclHeaderTest, TheProductsDeclarationsAreThoseOfNccl) {
  GTEST_SKIP() << "there is no nccl.h with cuda_runtime.h on this machine";
}

#endif

}  // namespace
}  // namespace causeway::worker
