// Every limit of the system, each with its reason (invariant 7: bounded).
#pragma once

#include <cstddef>
#include <cstdint>

namespace causeway::core {

// The bytes of a chunk, including its header. 1 MiB keeps a message under a second on a 10 Mbit/s link, so that
// resuming loses little, and is large enough that the per-message cost is negligible on a fast link.
inline constexpr int64_t kMaxChunkBytes = 1 << 20;

// The largest control message carries a manifest: 20,000 tensors of 300 bytes (name, shape, alias, digest), with room
// to spare.
inline constexpr int64_t kMaxControlMessageBytes = 8 << 20;
inline constexpr size_t kMaxSettingsBytes = 4 << 20;  // settings revisions in such a message, beside a manifest

inline constexpr size_t kMaxTensors = 20'000;       // including experts, the largest public models have about 15,000
inline constexpr size_t kMaxTensorNameBytes = 512;  // Hugging Face names stay under 120
inline constexpr int64_t kMaxParameters = int64_t{1} << 40;  // 16 TB of coordinator memory: a typing error, not a model
inline constexpr int kMaxFragments = 1024;  // each has one open round at a time; a round costs about 1 kB
inline constexpr int kMaxSites = 1024;      // each costs a status row and room in each round's bitmap
inline constexpr int kMaxRanks = 1024;      // ranks of one site; each has a connection
inline constexpr int kMaxCodecs = 256;      // codecs that a site can name, including those of newer versions

// Values beyond 2^100 cannot be parameters: a codec that met one would lose all others in its block, and sums of
// squares would overflow. Scales below 2^-100 would make quotients overflow, so such a block is sent as zeros.
inline constexpr float kMaxMagnitude = 0x1p100f;
inline constexpr float kMinScale = 0x1p-100f;

// Updates per fragment that the coordinator retains; their bytes are on disk. A site that is further behind takes the
// anchor, which is cheaper by then.
inline constexpr int kRetainedUpdates = 1000;

// A relaxed journal reaches the disk within this time after a write, plus the duration of the sync; below 200 ms in
// all.
inline constexpr int64_t kRelaxedSyncMs = 100;
// Where the journal begins a new segment file. Space is given back in whole segments, so that one of each kind may hold
// nothing but pruned payload; and the update log's default of 4 GiB is 16 files.
inline constexpr int64_t kSegmentBytes = int64_t{256} << 20;

// Segments whose descriptors stay open for reading: the full update log at the defaults, and replayed contributions.
inline constexpr size_t kMaxOpenSegments = 64;

// The number of events, of rounds and of contributions that the journal keeps as history: about 20 MB of rows each, and
// a week of 4 fragments with a round every 30 s.
inline constexpr int64_t kMaxHistoryEvents = 100'000;
inline constexpr int64_t kMaxHistoryBytes = 64 << 20;      // events, without commands; the longest have 4 kB
inline constexpr int64_t kMaxQueuedEventBytes = 64 << 20;  // events waiting for the disk; beyond, no message is read
inline constexpr int kMaxHistoryAnswer = 10'000;           // events in one answer
inline constexpr size_t kMaxHistoryAnswerBytes = 1 << 20;  // event texts, or one event more: fits into a message
inline constexpr size_t kMaxSiteTextBytes = 512;           // a reason that a site gives and the journal keeps
inline constexpr size_t kMaxEventTextBytes = 4'096;        // fits the contributors of a round of 64 sites, with weights

// Events queued for a site whose control stream is slow. Beyond this the stream is closed and the site reconnects.
inline constexpr size_t kMaxQueuedControlMessages = 4096;

// Backoff when reconnecting: doubles from the first to the last value, ±20 % so that sites do not return in step.
inline constexpr int64_t kFirstBackoffMs = 100;
inline constexpr int64_t kLastBackoffMs = 2'000;  // well inside the default lease of 10 s

// The interval at which a bulk stream that waits hears from the coordinator. A thousand streams are then 500 messages a
// second, of 20 bytes; a connection that died is found within three of them.
inline constexpr int64_t kBeatMs = 2'000;

// Limits on an unknown peer. A site opens two connections, so 10,000 idle ones are not from sites; each costs a
// descriptor and some 10 kB until the handshake times out.
inline constexpr int kHandshakeTimeoutMs = 10'000;  // several round trips of the slowest link
// Streams per connection: twice the 2 P bulk streams, and others; further ones wait at the peer.
constexpr int MaxStreamsPerConnection(int fragments) { return 4 * fragments + 64; }
// A call identifies itself with its first message; with the largest manifest that takes 7 s at 10 Mbit/s.
inline constexpr int64_t kFirstMessageMs = 10'000;
inline constexpr int kMaxMetadataBytes = 16 << 10;           // gRPC's own headers and a token stay under 2 kB
inline constexpr size_t kMaxTokenBytes = 4'096;              // a signed web token fits
inline constexpr int64_t kMostRunTokens = int64_t{1} << 53;  // the largest count that a double holds exactly
inline constexpr size_t kMaxCredentialFileBytes = 1 << 20;   // a bundle of 400 CAs, or 10,000 lines of tokens

inline constexpr int kMaxGrpcLogLines = 20;  // lines per ten seconds, such as those about failed handshakes

// The number of refused calls that are logged: the first ones at once, then two a second.
inline constexpr double kLoggedRefusalsPerSecond = 2;
inline constexpr double kLoggedRefusalsBurst = 20;

// Limits on one site. A worker reports four times per lease but at most every 20 ms, with a ping, so it sends 100
// messages a second and a few that join or leave; the burst is the backlog after a network outage.
inline constexpr double kControlMessagesPerSecond = 200;
inline constexpr double kControlMessagesBurst = 400;
// Bytes of a control message without a manifest: per fragment a digest, a slack, a delay with its reason and two words
// for the transfer in flight take at most 130. The rate allows four such messages a second, plus a backlog.
constexpr int64_t MaxControlBytes(int fragments) { return (int64_t{64} << 10) + int64_t{192} * fragments; }
inline constexpr double kControlBytesPerMessage = 4;  // messages of that size (MaxControlBytes), per second
inline constexpr double kControlBytesBurst = 16;
// Messages with a manifest are those that join: a site whose connection breaks comes back within seconds.
inline constexpr double kManifestBytesPerSecond = kMaxControlMessageBytes;
inline constexpr double kManifestBytesBurst = 4.0 * kMaxControlMessageBytes;
// Queries of one identity, as from causewayctl: it watches with one a second, and a script may send many at once.
inline constexpr double kQuestionsPerSecond = 10;
inline constexpr double kQuestionsBurst = 200;
inline constexpr int64_t kMaxQuestionBytes = 64 << 10;
// A round takes a stream each way for each fragment. Rounds without computation, as in tests, take a millisecond, so
// 2,000 streams a second; real ones take seconds.
inline constexpr double kBulkStreamsPerSecond = 5'000;
inline constexpr double kBulkStreamsBurst = 10'000;
// P fragments up and P down, twice: the streams of a connection that died silently stay until keepalive notices. Each
// transfer may be spread over up to kMaxStripes streams.
inline constexpr int kMaxStripes = 16;
constexpr int MaxBulkStreams(int fragments) { return kMaxStripes * (4 * fragments + 16); }

}  // namespace causeway::core
