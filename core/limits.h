// Every limit of the system, each with its reason (invariant 7: bounded).
#pragma once

#include <cstddef>
#include <cstdint>

namespace causeway::core {

// A chunk's bytes, header included. 1 MiB keeps one message's time on a 10 Mbit/s link under a second, so that resuming
// loses little, and is large enough that per-message cost does not show on a fast one.
inline constexpr int64_t kMaxChunkBytes = 1 << 20;

// A control message carries the manifest at most: 20,000 tensors of 300 bytes (name, shape, what it is tied to,
// digest), with room.
inline constexpr int64_t kMaxControlMessageBytes = 8 << 20;

inline constexpr size_t kMaxTensors = 20'000;       // experts included, the largest public models have about 15,000
inline constexpr size_t kMaxTensorNameBytes = 512;  // Hugging Face names stay under 120
inline constexpr int64_t kMaxParameters = int64_t{1} << 40;  // 16 TB of coordinator memory: a typing error, not a model
inline constexpr int kMaxFragments = 1024;  // one round each is open at a time; a round costs about 1 kB
inline constexpr int kMaxSites = 1024;      // a status row and a round's bitmap each
inline constexpr int kMaxRanks = 1024;      // of a site: each has a connection
inline constexpr int kMaxCodecs = 256;      // that a site can name: those of newer versions, too

// Values beyond 2^100 are not parameters any more: a codec that met one would lose all others in its block, and sums of
// squares overflow. Scales below 2^-100 would make quotients overflow, so such a block is sent as zeros.
inline constexpr float kMaxMagnitude = 0x1p100f;
inline constexpr float kMinScale = 0x1p-100f;

// Updates that the coordinator remembers, per fragment; their bytes are on disk. A site that is further behind takes
// the anchor, which is cheaper by then.
inline constexpr int kRetainedUpdates = 1000;

// Where the journal begins a new segment file. Space is given back in whole segments, so that one of each kind may hold
// nothing but pruned payload; and the update log's default of 4 GiB is 16 files.
// A relaxed journal is on the disk so long after it was written, and what that takes; below 200 ms in all.
inline constexpr int64_t kRelaxedSyncMs = 100;
inline constexpr int64_t kSegmentBytes = int64_t{256} << 20;

// Segments whose descriptors stay open for reading: the full update log at the defaults, and replayed contributions.
inline constexpr size_t kMaxOpenSegments = 64;

// Events, rounds and contributions that the journal keeps as history, of each: about 20 MB of rows, and a week of
// 4 fragments with a round every 30 s.
inline constexpr int64_t kMaxHistoryEvents = 100'000;
inline constexpr int64_t kMaxHistoryBytes = 64 << 20;  // of events, without commands: the longest have 4 kB each
inline constexpr int64_t kMaxQueuedEventBytes = 64
                                                << 20;  // for a disk that stands still; no control message is read then
inline constexpr int kMaxHistoryAnswer = 10'000;        // events in one answer
inline constexpr size_t kMaxHistoryAnswerBytes = 1 << 20;  // of their texts, or one event more: within a message
inline constexpr size_t kMaxSiteTextBytes = 512;           // that a site gives and the journal keeps: a reason
inline constexpr size_t kMaxEventTextBytes = 4'096;        // the contributors of a round of 64 sites, with weights

// Events queued for a site whose control stream is slow. Beyond it the stream is closed and the site reconnects.
inline constexpr size_t kMaxQueuedControlMessages = 4096;

// Reconnecting: doubles from the first to the last, ±20 % so that sites do not return in step.
inline constexpr int64_t kFirstBackoffMs = 100;
inline constexpr int64_t kLastBackoffMs = 2'000;  // well inside the default lease of 10 s

// What an unknown peer may take of the coordinator. A site opens two connections, so 10,000 idle ones are not its own;
// they cost a descriptor and some 10 kB each until the handshake's time is over.
inline constexpr int kHandshakeTimeoutMs = 10'000;  // several round trips of the slowest link
// Streams of one connection: 2 P of bulk twice, and others; more wait at the peer.
constexpr int MaxStreamsPerConnection(int fragments) { return 4 * fragments + 64; }
// A call says who it is with its first message; one with the largest manifest takes 7 s at 10 Mbit/s.
inline constexpr int64_t kFirstMessageMs = 10'000;
inline constexpr int kMaxMetadataBytes = 16 << 10;          // gRPC's own headers and a token stay under 2 kB
inline constexpr size_t kMaxTokenBytes = 4'096;             // a signed web token fits
inline constexpr size_t kMaxCredentialFileBytes = 1 << 20;  // a bundle of 400 CAs, or 10,000 lines of tokens

inline constexpr int kMaxGrpcLogLines = 20;  // in ten seconds: what is said of failed handshakes, for one

// Refused calls that are logged: the first ones at once, then two a second.
inline constexpr double kLoggedRefusalsPerSecond = 2;
inline constexpr double kLoggedRefusalsBurst = 20;

// What one site may take. A worker reports four times in a lease but at most every 20 ms, with a ping, so 100 messages
// a second and a few that join or leave; the burst is what has waited while the network was away.
inline constexpr double kControlMessagesPerSecond = 200;
inline constexpr double kControlMessagesBurst = 400;
// Bytes of one of them, unless it carries a manifest: of each fragment a digest, a slack, a delay with its reason and
// two words of what is under way come to 130 at most. Four such messages a second, and what has waited.
constexpr int64_t MaxControlBytes(int fragments) { return (int64_t{64} << 10) + int64_t{192} * fragments; }
inline constexpr double kControlBytesPerMessage = 4;  // a second, in messages of that size
inline constexpr double kControlBytesBurst = 16;
// Those with a manifest are those that join: a site whose connection breaks comes back within seconds.
inline constexpr double kManifestBytesPerSecond = kMaxControlMessageBytes;
inline constexpr double kManifestBytesBurst = 4.0 * kMaxControlMessageBytes;
// Questions of one identity, as causewayctl asks them: it watches with one a second, and a script may ask many at once.
inline constexpr double kQuestionsPerSecond = 10;
inline constexpr double kQuestionsBurst = 200;
inline constexpr int64_t kMaxQuestionBytes = 64 << 10;
// A round takes a stream each way for each fragment. Rounds without computation, as in tests, take a millisecond, so
// 2,000 streams a second; real ones take seconds.
inline constexpr double kBulkStreamsPerSecond = 5'000;
inline constexpr double kBulkStreamsBurst = 10'000;
// P fragments up and P down, twice: those of a connection that died without a word stay until keepalive notices. Each
// transfer may be spread over so many streams.
inline constexpr int kMaxStripes = 16;
constexpr int MaxBulkStreams(int fragments) { return kMaxStripes * (4 * fragments + 16); }

}  // namespace causeway::core
