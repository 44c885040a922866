// A journal in a folder of its own, and short ways to fill it.
#pragma once

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/change_set.h"
#include "server/store/journal.h"
#include "server/store/schema.h"
#include "server/store/sqlite.h"
#include "server/store/state_log.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::server {

inline constexpr int64_t kGenerousLog = int64_t{1} << 30;

inline ChunkPtr Chunk(std::string bytes) { return std::make_shared<const std::string>(std::move(bytes)); }

// Two chunks, so that their lengths matter.
inline std::vector<ChunkPtr> Chunks(const std::string& text) { return {Chunk(text), Chunk("|" + text)}; }
inline std::string Written(const std::string& text) { return text + "|" + text; }

inline std::string PayloadOf(const std::string& site, core::Version base) { return absl::StrCat(site, " from ", base); }
inline std::string UpdateOf(core::Version base) { return absl::StrCat("update of ", base); }
inline uint64_t DigestOf(core::Version version) { return 0xfedcba9876543200 + static_cast<uint64_t>(version); }

inline ContributionRecord Contribution(core::FragmentId fragment, const std::string& site, core::Version base) {
  return {fragment, site, {.base = base, .tokens = 640 + base, .steps = 20}, Chunks(PayloadOf(site, base))};
}

// A round that merges contributions of its own base version, in equal parts.
inline RoundRecord Round(core::FragmentId fragment, core::Version base, const std::vector<std::string>& sites) {
  RoundRecord round{.fragment = fragment,
                    .base = base,
                    .contributors = {},
                    .outer = {.lr = 0.4f, .momentum = 0.9f},
                    .sites = sites,
                    .reason = "all \"active\" sites have contributed"};
  for (const std::string& site : sites) {
    round.contributors.push_back({site, base, 1.0f / static_cast<float>(sites.size())});
  }
  return round;
}

inline MergedRecord Merged(core::FragmentId fragment, core::Version base) {
  return {fragment, base, DigestOf(base + 1), Chunks(UpdateOf(base)), nullptr};
}

inline core::FragmentState State(core::Version version) {
  core::FragmentState state{.version = version};
  state.anchor.assign(4096, 1.5f + static_cast<float>(version));
  state.momentum.assign(4096, -0.0f);
  state.residual.assign(4096, 0x1p-149f);
  return state;
}

inline RunRecord RunOf(int fragments) {
  RunRecord run;
  for (int p = 0; p < fragments; ++p) {
    run.manifest.push_back({absl::StrCat("w", p), {64, 64}, core::TensorKind::kMatrix, p});
    run.tensors_of_fragment.push_back({core::TensorPart{p}});
  }
  return run;
}

inline std::string Payload(const Journal& journal, const Extent& extent) {
  std::string bytes;
  for (size_t i = 0; i < extent.chunk_bytes.size(); ++i) {
    const auto chunk = journal.ReadChunk(extent, i);
    EXPECT_TRUE(chunk.ok()) << chunk.status();
    if (chunk.ok()) bytes += *chunk;
  }
  return bytes;
}

class JournalTest : public testing::Test {
 protected:
  JournalTest() {
    options_.directory = folder_ / "state";
    options_.run_config = std::string("\x0a\x00\xff", 3);
    options_.max_update_log_bytes = kGenerousLog;
    options_.failed = [this](const absl::Status& status) { failures_.push_back(status); };
  }

  std::unique_ptr<Journal> Open() { return OpenAt(options_.directory); }
  std::unique_ptr<Journal> OpenAt(const std::string& directory) {
    JournalOptions options = options_;
    options.directory = directory;
    auto journal = Journal::Open(options);
    EXPECT_TRUE(journal.ok()) << journal.status();
    return journal.ok() ? *std::move(journal) : nullptr;
  }
  static StoredRun Load(const Journal& journal) {
    auto stored = journal.Load();
    EXPECT_TRUE(stored.ok()) << stored.status();
    return stored.ok() ? *std::move(stored) : StoredRun();
  }

  static void Seed(Journal& journal, int fragments) {
    for (int p = 0; p < fragments; ++p) ASSERT_TRUE(journal.SaveSnapshot(p, State(0), DigestOf(0)).ok());
    ASSERT_TRUE(journal.Begin(RunOf(fragments)).ok());
  }
  // One whole round of sites "eu" and "us", up to its digest.
  static void PlayRound(Journal& journal, core::FragmentId fragment, core::Version base) {
    journal.Commit({.admitted = {Contribution(fragment, "us", base), Contribution(fragment, "eu", base)}});
    journal.Commit({.decided = {Round(fragment, base, {"eu", "us"})}});
    journal.Commit({.merged = {Merged(fragment, base)}});
    journal.Flush();
    ASSERT_TRUE(journal.status().ok()) << journal.status();
  }

  // Changes rows as if they had been committed so, with the coordinator down.
  void Sql(const std::string& sql) const { Rewrite(options_.directory, sql); }
  static void Rewrite(const std::string& directory, const std::string& sql) {
    const auto found = StateLog::Read(directory);
    ASSERT_TRUE(found.ok()) << found.status();
    auto index = BuildIndex(directory, (*found)->changes, /*expected_new=*/false);
    ASSERT_TRUE(index.ok()) << index.status();
    ASSERT_TRUE((*index)->Script(sql.c_str()).ok()) << sql;
    index->reset();
    const auto rows = AllRows(NewIndexPath(directory), kTables);
    ASSERT_TRUE(rows.ok()) << rows.status();
    ASSERT_TRUE(StateLog::Begin(directory, **found, (*found)->epoch, *rows).ok());
  }

  absl::Status OpenStatus() const { return Journal::Open(options_).status(); }

  static std::vector<std::string> FilesIn(const std::string& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  std::vector<std::string> Segments() const { return FilesIn(options_.directory + "/segments"); }
  std::vector<std::string> Snapshots() const { return FilesIn(options_.directory + "/snapshots"); }

  const TemporaryFolder folder_;
  JournalOptions options_;
  std::vector<absl::Status> failures_;
};

}  // namespace causeway::server
