// Scripts of a run without its exchange: an input a line, and below it the Ready that it leaves, or the error that it is
// answered with. Nothing is committed, so that all that a line shows waits for the disk.
//
//   settings steps=1 shard=1/2         a new run of two fragments
//   join a b held=0,0 checkpoint=1     each from a new stream; `session`, `stay`, `protocol`, `run`, `name`, `codecs=none`
//   seed a                             all that this shard owns, and that it is saved
//   train a b                          join, seed and ready, unsaid
//   10 contribute a fragment=1 base=0  10 ms after the begin: begun, its chunks, complete
//   begin a stay=1 chunks=1            shows which chunks are missing; the first ones come after that
//   follow update=a,b started=1        shard 0's word, of sites that train if it has started
//
// The figures in the texts are those of ConfigForTest. A time is that of the line before, unless given.
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/check.h"
#include "server/run/run.h"
#include "tests/core/script.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

class FollowingShard final : public ShardPeer {
 public:
  void Send(const v1::MembershipUpdate&) override {}
};

class RunScript {
 public:
  ~RunScript() {
    if (run_) run_->EndModel();
  }

  std::string Play(const core::ScriptLine& line) {
    said_.clear();
    std::vector<std::string> words = line.words;
    if (!words.empty() && absl::SimpleAtoi(words[0], &now_ms_)) words.erase(words.begin());
    const std::string verb = words.at(0);
    clock_.Set(now_ms_);
    if (verb == "settings") {
      Begin(line);
    } else if (verb == "train") {
      const core::ScriptLine plain = core::ScriptLine::Of("");
      for (const char* step : {"join", "seed", "ready"}) {
        for (size_t i = 1; i < words.size(); ++i) Do(step, words[i], plain);
      }
      said_.clear();
    } else {
      words.erase(words.begin());
      if (words.empty()) words.emplace_back();
      for (const std::string& site : words) Do(verb, site, line);
    }
    const RunRules& rules = *run_->View().rules;
    const std::string reason = rules.Reason();
    const std::string state = absl::StrCat(RunStateName(rules.run_state()), reason.empty() ? "" : " : ", reason);
    if (state != state_) absl::StrAppend(&said_, "=> ", state_ = state, "\n");
    return std::move(said_);
  }

 private:
  void Begin(const core::ScriptLine& line) {
    if (run_) run_->EndModel();
    run_.reset();
    peers_.clear();
    core::RunConfig config = ConfigForTest();
    config.steps = line.Number("steps");
    options_ = {.config = config, .run_config = "the config", .clock = &clock_, .lead = "lead:1"};
    if (line.Word("shard") == "1/2") options_.shard = kSecond;
    if (line.Word("shard") == "0/2") options_.shard = kLead;
    clock_.Set(now_ms_ = 0);
    journal_.reset();
    folder_.emplace();
    journal_ = *Journal::Open({.directory = folder_->path(), .shard = options_.shard, .failed = nullptr});
    run_.emplace(options_, *journal_, figures_, durable_, RunModel::Listeners{});
    EXPECT_TRUE(run_->Restore({}, 0).ok());
  }

  void Do(const std::string& verb, const std::string& site, const core::ScriptLine& line) {
    v1::UploadHeader header = HeaderOf(site, static_cast<int>(line.Number("fragment")), line.Number("base"));
    header.mutable_context()->set_stay(line.Number("stay"));
    if (verb == "join") return Join(site, line);
    if (verb == "ready") return Handle(input::SiteReady{peers_.at(site).get()});
    if (verb == "disconnect") return Handle(input::Disconnected{peers_.at(site).get()});
    if (verb == "flood") return Handle(input::Flooded{site, line.text});
    if (verb == "tick") return Handle(input::Tick{});
    if (verb == "drain") return Handle(input::Drain{site});
    if (verb == "release") return Handle(input::Release{site});
    if (verb == "seed") return Seed(site);
    if (verb == "begin") return Begin(header, line.Number("chunks"));
    if (verb == "contribute" || verb == "misencode") return Contribute(header, verb == "misencode");
    if (verb == "follow") return Follow(line);
    if (verb == "shard") return Report(line);
    if (verb == "set") return Set(line);
    if (verb == "report") {
      v1::Progress progress;
      progress.set_step(line.Number("step"));
      return Handle(input::Progress{peers_.at(site).get(), progress});
    }
    if (verb == "leave") {
      v1::Leave leave;
      leave.set_finished(line.Number("finished") != 0);
      leave.set_reason(line.text);
      return Handle(input::Leave{peers_.at(site).get(), leave});
    }
    v1::ChangeRunRequest::Change change;
    CHECK(v1::ChangeRunRequest::Change_Parse(absl::AsciiStrToUpper(verb), &change));
    Handle(input::ChangeRun{change});
  }

  void Join(const std::string& site, const core::ScriptLine& line) {
    v1::Join join = JoinOf(site);
    v1::Context& context = *join.mutable_context();
    context.set_site(line.Word("name", site));
    if (line.Has("session")) context.set_session(line.Word("session"));
    context.set_run_id(line.Word("run", "test"));
    context.set_protocol(static_cast<uint32_t>(line.Number("protocol", transport::kProtocol)));
    if (line.Word("codecs") == "none") join.clear_codecs();
    if (line.Has("kind")) join.mutable_manifest()->mutable_tensors(0)->set_kind(99);
    for (const int64_t version : line.Numbers("held")) join.add_versions(version);
    join.set_from_checkpoint(line.Number("checkpoint") != 0);
    join.set_stay(line.Number("stay"));
    join.set_software_version("1");
    const std::shared_ptr<SitePeer> peer = std::make_shared<RecordedPeer>();
    streams_.push_back(peer);
    const absl::StatusOr<core::Manifest> manifest = run_->View().admission.ReadManifest(join);
    Handle(input::Join{peer, join, manifest});
    if (run_->View().members.SiteOf(peer.get()) == site) peers_[site] = peer;
  }

  Upload Chunks(const v1::UploadHeader& header, core::CodecId codec) {
    Ready begun = run_->Handle(input::BeginUpload{header}, now_ms_);
    if (!begun.status.ok()) Say(begun);
    if (begun.upload.contribution != nullptr) {
      const core::Fragment& fragment = run_->View().model.fact().map().fragment(header.fragment());
      for (const std::string& chunk : ChunksOf(fragment, codec, header.initial() ? 0 : 1)) {
        EXPECT_TRUE(begun.upload.contribution->Add(chunk).ok());
      }
    }
    return begun.upload;
  }

  void Seed(const std::string& site) {
    for (int p = 0; p < 2; ++p) {
      if (!options_.shard.Owns(p)) continue;
      v1::UploadHeader header = HeaderOf(site, p);
      header.set_initial(true);
      const Upload upload = Chunks(header, core::CodecId::kFloat32);
      if (upload.contribution == nullptr) return;
      Ready whole = run_->Handle(input::CompleteUpload{header, upload, nullptr}, now_ms_);
      if (whole.seed.parts.empty()) continue;
      EXPECT_TRUE(SaveSeed(std::move(whole.seed), options_.shard, false, *journal_).ok());
      Handle(input::SeedSaved{});
    }
  }

  void Begin(const v1::UploadHeader& header, int64_t chunks) {
    Ready begun = run_->Handle(input::BeginUpload{header}, now_ms_);
    Say(begun);
    if (!begun.status.ok()) return;
    if (begun.upload.contribution == nullptr) return void(said_ += "-> no chunk is needed\n");
    absl::StrAppend(&said_, "-> missing ", absl::StrJoin(begun.upload.contribution->Missing(), " "), "\n");
    const core::Fragment& fragment = run_->View().model.fact().map().fragment(header.fragment());
    for (int64_t i = 0; i < chunks; ++i) {
      EXPECT_TRUE(begun.upload.contribution->Add(ChunksOf(fragment, core::CodecId::kInt4, 1)[i]).ok());
    }
  }

  void Contribute(const v1::UploadHeader& header, bool wrong) {
    const Upload upload = Chunks(header, core::CodecId::kInt4);
    if (!wrong) return Handle(input::CompleteUpload{header, upload, nullptr});
    Handle(input::RefuseUpload{header, upload, "expected int4, got sign", nullptr});
  }

  void Follow(const core::ScriptLine& line) {
    if (line.Has("shard")) {  // another one's stream begins, or ends
      v1::Context context = ContextForTest("");
      context.set_shard(static_cast<int>(line.Number("shard")));
      context.set_num_shards(static_cast<int>(line.Number("of", 2)));
      const std::shared_ptr<ShardPeer> peer = std::make_shared<FollowingShard>();
      if (line.Has("ends")) return Handle(input::EndFollow{following_.get()});
      following_ = peer;
      return Handle(input::BeginFollow{context, peer});
    }
    v1::MembershipUpdate update;
    const core::FragmentMap map = *core::BuildFragmentMap(ManifestForTest(), options_.config.sync);
    for (const std::string& site : line.List("update")) {
      const v1::MembershipUpdate one = UpdateWith(map, site, 1, line.Word("run", "test"));
      const auto members = update.members();
      update = one;
      *update.mutable_members() = members;
      *update.add_members() = one.members(0);
    }
    update.set_seeder(line.Word("seeder"));
    if (line.Number("started") != 0) {
      update.set_started(true);
      for (v1::Member& member : *update.mutable_members()) {
        member.set_state(static_cast<uint32_t>(core::SiteState::kTraining));
        for (int p = 0; p < 2; ++p) member.add_first_versions(0);
      }
    }
    Handle(input::Membership{update});
  }

  void Report(const core::ScriptLine& line) {
    v1::ShardReport report;
    report.set_seeded(line.Number("seeded") != 0);
    for (const int64_t version : line.Numbers("versions")) report.add_versions(version);
    Handle(input::Report{1, report});
  }

  void Set(const core::ScriptLine& line) {
    v1::ChangeSettingsRequest request;
    for (const auto& [key, value] : line.fields) {
      request.add_changes()->set_key(key);
      request.mutable_changes(request.changes_size() - 1)->set_value(value);
    }
    Handle(input::ChangeSettings{request});
  }

  void Handle(const Input& input) { Say(run_->Handle(input, now_ms_)); }

  // Without what differs from life to life, and the model.
  void Say(Ready ready) {
    for (Effect& one : ready.effects) {
      if (auto* send = std::get_if<effect::Send>(&one); send != nullptr && send->message.has_welcome()) {
        const v1::Welcome full = send->message.welcome();
        v1::Welcome& welcome = *send->message.mutable_welcome();
        welcome.Clear();
        welcome.set_resumed(full.resumed());
        welcome.set_held(full.held());
        welcome.set_forgotten(full.forgotten());
        welcome.set_stay(full.stay());
        welcome.set_generation(full.generation());
        *welcome.mutable_last_admitted() = full.last_admitted();
        welcome.set_proof(full.proof());  // a text shows none
        *welcome.mutable_admission_proofs() = full.admission_proofs();
        for (const v1::SettingsRevision& revision : full.revisions()) {
          welcome.add_revisions()->set_number(revision.number());
        }
      }
      if (auto* tell = std::get_if<effect::Tell>(&one)) {
        v1::MembershipUpdate update = *tell->update;
        update.clear_manifest();
        update.clear_fragments();
        tell->update = std::make_shared<const v1::MembershipUpdate>(std::move(update));
      }
    }
    const std::string text = ready.Text();
    if (!text.empty()) absl::StrAppend(&said_, "-> ", absl::StrReplaceAll(text, {{"\n", "\n-> "}}), "\n");
    if (!ready.status.ok()) {
      absl::StrAppend(&said_, "-> ", absl::StatusCodeToString(ready.status.code()), " : ", ready.status.message(),
                      "\n");
    }
  }

  std::optional<TemporaryFolder> folder_;
  core::FakeClock clock_;
  RunOptions options_;
  std::unique_ptr<Journal> journal_;
  DurableFacts durable_;
  RunFigures figures_{&clock_};
  std::optional<Run> run_;
  std::vector<std::shared_ptr<SitePeer>> streams_;  // of all that ever joined
  std::map<std::string, std::shared_ptr<SitePeer>> peers_;
  std::shared_ptr<ShardPeer> following_;
  int64_t now_ms_ = 0;
  std::string said_, state_;
};

TEST(RunScripts, LeaveWhatTheyLeft) {
  core::ExpectScripts(RUN_TESTDATA, [](const std::string& script) {
    RunScript run;
    return core::PlayScript(script, [&run](const core::ScriptLine& line) { return run.Play(line); });
  });
}

}  // namespace
}  // namespace causeway::server
