// FITS(function of NCCL, member of NcclApi), for each but ncclSend, which a library may lack.
#pragma once

// clang-format off
#define EACH_NCCL_FUNCTION(FITS) \
  FITS(ncclGetVersion, get_version) FITS(ncclGetUniqueId, get_unique_id) \
  FITS(ncclCommInitRankConfig, init_rank_config) FITS(ncclCommGetAsyncError, get_async_error) \
  FITS(ncclCommAbort, abort) FITS(ncclCommFinalize, finalize) FITS(ncclCommDestroy, destroy) \
  FITS(ncclAllReduce, all_reduce) FITS(ncclReduceScatter, reduce_scatter) FITS(ncclAllGather, all_gather) \
  FITS(ncclBroadcast, broadcast) FITS(ncclRecv, receive) FITS(ncclGroupStart, group_start) \
  FITS(ncclGroupEnd, group_end) FITS(ncclGetErrorString, get_error_string) FITS(ncclGetLastError, get_last_error)
