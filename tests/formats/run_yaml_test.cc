// Every way in which a run.yaml can be wrong, with the message that its author sees.
#include "formats/run_yaml.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "core/check.h"
#include "formats/yaml_message.h"
#include "tests/folders.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using ::testing::HasSubstr;
using testing::HasSubstr;

// The error of a run.yaml that holds `text` below "run_id: demo", which is line 1.
std::string ErrorOfYaml(const std::string& text) {
  const absl::StatusOr<core::RunConfig> config = ParseRunYaml("run_id: demo\n" + text, "run.yaml");
  return config.ok() ? "accepted" : std::string(config.status().message());
}

struct Case {
  const char* name;
  const char* text;   // from line 2 on
  const char* error;  // whole
};

class RunYamlRefuses : public testing::TestWithParam<Case> {};

TEST_P(RunYamlRefuses, WithLineKeyAndReason) { EXPECT_EQ(ErrorOfYaml(GetParam().text), GetParam().error); }

std::string CaseName(const testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Form, RunYamlRefuses,
    testing::Values(
        Case{"ResemblingKey", "sync:\n  sync_evry: 20\n",
             "run.yaml:3: sync.sync_evry: expected sync_every (the nearest known key), got an unknown key"},
        Case{"UnknownKey", "eval: {colour: red}\n",
             "run.yaml:2: eval.colour: expected one of every_rounds, held_out, batches, got an unknown key"},
        Case{"KeyWithADot", "sync.sync_every: 20\n",
             "run.yaml:2: sync.sync_every: expected a line \"sync:\", and below it, two columns deeper, \"sync_every: "
             "…\", got "
             "an unknown key"},
        Case{"TagOfAnInteger", "run: {steps: !!int 40}\n",
             "run.yaml:2: run.steps: expected an integer of 64 bits, got 40 with the tag !!int: leave the tag out"},
        Case{"Octal", "run: {steps: 050}\n",
             "run.yaml:2: run.steps: expected an integer of 64 bits, got 050, which some programs read as octal: leave "
             "the 0 "
             "out"},
        Case{"RepeatedKey", "seed: 1\nseed: 2\n",
             "run.yaml:3: seed: expected each key once, got it again after line 2"},
        Case{"RepeatedSite",
             "model:\n  kind: synthetic\n  tensors: [{name: w, shape: [1]}]\n  gradient:\n    by_site:\n      a: 1\n   "
             "   a: 2\n",
             "run.yaml:8: model.gradient.by_site.a: expected each key once, got it again after line 7"},
        Case{"KeyThatIsAList", "[a, b]: 1\n", "run.yaml:1: expected keys that are names, got a list"},
        Case{"TextForInteger", "seed: many\n", "run.yaml:2: seed: expected an integer of 0 to 2^64 - 1, got many"},
        Case{"NegativeSeed", "seed: -1\n", "run.yaml:2: seed: expected an integer of 0 to 2^64 - 1, got -1"},
        Case{"FractionForInteger", "run: {steps: 1.5}\n",
             "run.yaml:2: run.steps: expected an integer of 64 bits, got 1.5"},
        Case{"ExponentForInteger", "run: {steps: 1e3}\n",
             "run.yaml:2: run.steps: expected an integer of 64 bits, got 1e3"},
        Case{"IntegerBeyond64Bits", "run: {steps: 9223372036854775808}\n",
             "run.yaml:2: run.steps: expected an integer of 64 bits, got 9223372036854775808"},
        Case{"QuotedInteger", "run: {steps: \"5\"}\n",
             "run.yaml:2: run.steps: expected an integer of 64 bits, got \"5\""},
        Case{"NothingForInteger", "run: {steps: }\n",
             "run.yaml:2: run.steps: expected an integer of 64 bits, got nothing"},
        Case{"WordForNumber", "inner: {lr: fast}\n", "run.yaml:2: inner.lr: expected a number, got fast"},
        Case{"NanWithoutDot", "inner: {lr: nan}\n", "run.yaml:2: inner.lr: expected a number, got nan"},
        Case{"NumberTooLarge", "inner: {lr: 1e999}\n", "run.yaml:2: inner.lr: expected a number, got 1e999"},
        Case{"FloatTooLarge", "outer: {lr: 1e39}\n", "run.yaml:2: outer.lr: expected a number, got 1e39"},
        Case{"YesForTrue", "model: {tie_word_embeddings: yes}\n",
             "run.yaml:2: model.tie_word_embeddings: expected true or false, got yes"},
        Case{"ListForText", "codec: {up: [int4]}\n", "run.yaml:2: codec.up: expected a text, got a list"},
        Case{"ScalarForSection", "sync: 5\n", "run.yaml:2: sync: expected a section of keys, got 5"},
        Case{"ScalarForList", "codec: {exempt: norm}\n", "run.yaml:2: codec.exempt: expected a list, got norm"},
        Case{"TagOfItsOwn", "seed: !dice 5\n",
             "run.yaml:2: seed: expected an integer of 0 to 2^64 - 1, got 5 with the tag !dice: leave the tag out"},
        Case{"SecondDocument", "---\nseed: 2\n", "run.yaml:1: expected one YAML document, got several"},
        Case{"OpenBracket", "seed: 1\nsync: {sync_every: 3\n",
             "run.yaml:4: expected YAML, got end of map flow not found"},
        Case{"Tab", "sync:\n\tsync_every: 3\n",
             "run.yaml:3: expected YAML, got illegal map value: line 3 begins with a tab: YAML is indented by spaces"}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Values, RunYamlRefuses,
    testing::Values(
        Case{"Steps", "run: {steps: -1}\n", "run.yaml:2: run.steps: expected 0 to 1000000000000, got -1"},
        Case{"InnerOptimizer", "inner: {optimizer: lion}\n",
             "run.yaml:2: inner.optimizer: expected adamw | sgd | onebit_adam, got lion"},
        Case{"NegativeRate", "inner: {lr: -0.1}\n", "run.yaml:2: inner.lr: expected a number of 0 or more, got -0.1"},
        Case{"InfiniteRate", "inner: {lr: .inf}\n", "run.yaml:2: inner.lr: expected a number of 0 or more, got inf"},
        Case{"NanRate", "outer:\n  lr: .nan\n", "run.yaml:3: outer.lr: expected a number of 0 or more, got nan"},
        Case{"Warmup", "inner: {warmup_steps: -1}\n",
             "run.yaml:2: inner.warmup_steps: expected 0 to 1000000000000, got -1"},
        Case{"Schedule", "inner: {schedule: linear}\n",
             "run.yaml:2: inner.schedule: expected cosine | constant, got linear"},
        Case{"Beta", "inner: {beta1: 1}\n", "run.yaml:2: inner.beta1: expected 0 to less than 1, got 1"},
        Case{"Batch", "inner: {batch_size: 0}\n", "run.yaml:2: inner.batch_size: expected 1 to 1048576, got 0"},
        Case{"BatchTwice", "inner: {batch_by_site: {eu: 4}, batch_per_rank: 8}\nmembership: {weights: tokens}\n",
             "run.yaml:2: inner.batch_per_rank: expected none beside inner.batch_by_site, got 8"},
        Case{"BatchAndUniform", "inner: {batch_by_site: {eu: 4}}\n",
             "run.yaml:2: inner.batch_by_site.eu: expected membership.weights: tokens with it, got 4 rows with "
             "membership.weights: uniform"},
        Case{"FreezeWithoutOnebitAdam", "inner: {freeze_at: 9}\n",
             "run.yaml:2: inner.freeze_at: expected none without inner.optimizer: onebit_adam, got 9"},
        Case{"Mode", "sync: {mode: gossip}\n", "run.yaml:2: sync.mode: expected synchronous | quorum, got gossip"},
        Case{"SyncEvery", "sync: {sync_every: 0}\n", "run.yaml:2: sync.sync_every: expected 1 to 1000000000, got 0"},
        Case{"SmallestInteger", "sync: {sync_every: -9223372036854775808}\n",
             "run.yaml:2: sync.sync_every: expected 1 to 1000000000, got -9223372036854775808"},
        Case{"NoFragment", "sync: {num_fragments: 0}\n", "run.yaml:2: sync.num_fragments: expected 1 to 1024, got 0"},
        Case{"ManyFragments", "sync: {num_fragments: 1025}\n",
             "run.yaml:2: sync.num_fragments: expected 1 to 1024, got 1025"},
        Case{"MoreFragmentsThanSteps", "sync:\n  sync_every: 3\n  num_fragments: 4\n",
             "run.yaml:4: sync.num_fragments: expected 1 to 3 (at most sync_every), got 4"},
        Case{"DefaultFragmentsBeyondSteps", "sync:\n  sync_every: 3\n",
             "run.yaml:2: sync.num_fragments: expected 1 to 3 (at most sync_every), got 4 by default"},
        Case{"MoreFragmentsThanLayers", "sync: {num_fragments: 6}\n",
             "run.yaml:2: sync.num_fragments: expected 1 to 5 (num_hidden_layers, and one for embeddings and head), "
             "got 6"},
        Case{"MoreFragmentsThanTensors", "sync: {sync_every: 50, num_fragments: 39, fragment_assignment: balanced}\n",
             "run.yaml:2: sync.num_fragments: expected 1 to 38 (the model's tensors), got 39"},
        Case{"Assignment", "sync: {fragment_assignment: random}\n",
             "run.yaml:2: sync.fragment_assignment: expected strided | sequential | balanced, got random"},
        Case{"DelayBeyondInterval", "sync:\n  sync_every: 20\n  fragment_sync_delay: 25\n",
             "run.yaml:4: sync.fragment_sync_delay: expected 0 to 19 (less than sync_every), got 25"},
        Case{"AutoDelayInQuorumMode", "sync: {mode: quorum, fragment_sync_delay: auto}\n",
             "run.yaml:2: sync.fragment_sync_delay: expected a number of steps (auto is for mode: synchronous), got "
             "auto"},
        Case{"AutoWhereThereIsNothingToChoose", "sync: {sync_every: auto}\n",
             "run.yaml:2: sync.sync_every: expected an integer of 64 bits, got auto"},
        Case{"DelayOfInterval", "sync: {fragment_sync_delay: 20}\n",
             "run.yaml:2: sync.fragment_sync_delay: expected 0 to 19 (less than sync_every), got 20"},
        Case{"Alpha", "sync: {fragment_update_alpha: 1.5}\n",
             "run.yaml:2: sync.fragment_update_alpha: expected 0 to 1, got 1.5"},
        Case{"NanAlpha", "sync: {fragment_update_alpha: .nan}\n",
             "run.yaml:2: sync.fragment_update_alpha: expected 0 to 1, got nan"},
        Case{"InterleaveOfNothing", "offload: {k: 0}\n",
             "run.yaml:2: offload.k: expected auto | resident | cpu | 1 to 1000000, got 0"},
        Case{"ShareOfWhatIsResident", "offload: {k: resident, resident_share: 0.5}\n",
             "run.yaml:2: offload.resident_share: expected auto with offload.k: resident, got 0.5"},
        Case{"TinySubgroup", "offload:\n  subgroup: 10\n",
             "run.yaml:3: offload.subgroup: expected 1000 to 10000000000 (values), got 10"},
        Case{"OuterOptimizer", "outer: {optimizer: adam}\n",
             "run.yaml:2: outer.optimizer: expected nesterov | sgd, got adam"},
        Case{"Momentum", "outer: {momentum: 1}\n", "run.yaml:2: outer.momentum: expected 0 to less than 1, got 1"},
        Case{"MomentumOfSgd", "outer:\n  optimizer: sgd\n  momentum: 0.5\n",
             "run.yaml:4: outer.momentum: expected 0 (the optimizer is sgd), got 0.5"},
        Case{"UnknownCodec", "codec:\n  down: int5\n",
             "run.yaml:3: codec.down: expected one of float32, bfloat16, int8, int4, e3m0, sign, rotated_sign, "
             "rotated_lm2, rotated_lm4, topk32, topk, topk128, topk256, topk512, onebit_adam_sign, got int5"},
        Case{"CodecOfTheUpLegAlone", "codec:\n  up: onebit_adam_sign\n  down: onebit_adam_sign\n",
             "run.yaml:4: codec.down: expected another codec (it is for the up leg only), got onebit_adam_sign"},
        Case{"AllowedWithoutAuto", "codec:\n  up: int4\n  allow_up: [int4]\n",
             "run.yaml:4: codec.allow_up: expected it only with up: auto, got it with up: int4"},
        Case{"AutoInQuorumMode", "sync: {mode: quorum}\ncodec:\n  down: auto\n",
             "run.yaml:4: codec.down: expected a codec's name (auto is for mode: synchronous), got auto"},
        Case{"AllowedOfTwoDomains", "codec:\n  up: auto\n  allow_up: [bfloat16, rotated_lm2]\n",
             "run.yaml:4: codec.allow_up[1]: expected one that does not rotate, like bfloat16: residuals cannot pass "
             "from "
             "one kind to the other, got rotated_lm2"},
        Case{
            "AllowedInTheWrongOrder", "codec: {down: auto, allow_down: [rotated_lm2, rotated_lm4]}\n",
            "run.yaml:2: codec.allow_down[1]: expected fewer bits than the 2 of rotated_lm2 before it, got rotated_lm4 "
            "with 4"},
        Case{
            "AllowedTopk", "codec: {up: auto, allow_up: [topk]}\n",
            "run.yaml:2: codec.allow_up[0]: expected a codec that auto can change to in the middle of a run, got topk"},
        Case{"AllowedUnknown", "codec: {up: auto, allow_up: [auto]}\n",
             "run.yaml:2: codec.allow_up[0]: expected one of float32, bfloat16, int8, int4, e3m0, sign, rotated_sign, "
             "rotated_lm2, rotated_lm4, topk32, topk, topk128, topk256, topk512, onebit_adam_sign, got auto"},
        Case{"FeedbackUp", "codec: {feedback_up: -0.5}\n", "run.yaml:2: codec.feedback_up: expected 0 to 1, got -0.5"},
        Case{"FeedbackDown", "codec: {feedback_down: 2}\n", "run.yaml:2: codec.feedback_down: expected 0 to 1, got 2"},
        Case{"ExemptKind", "codec:\n  exempt:\n    - norm\n    - bias\n",
             "run.yaml:5: codec.exempt[1]: expected matrix | embedding | norm | head | expert | buffer, got bias"},
        Case{"Zstd", "codec: {zstd: 1}\n", "run.yaml:2: codec.zstd: expected true or false, got 1"},
        Case{"NoSites", "membership: {min_sites: 0}\n", "run.yaml:2: membership.min_sites: expected 1 to 1024, got 0"},
        Case{"ManySites", "membership: {min_sites: 1025}\n",
             "run.yaml:2: membership.min_sites: expected 1 to 1024, got 1025"},
        Case{"Quorum", "membership: {min_quorum: 0}\n", "run.yaml:2: membership.min_quorum: expected 1 to 1024, got 0"},
        Case{"Grace", "membership: {grace_ms: 5}\n",
             "run.yaml:2: membership.grace_ms: expected 0 (a round in synchronous mode waits for all sites), got 5"},
        Case{"Lease", "membership: {lease_ms: 99}\n",
             "run.yaml:2: membership.lease_ms: expected 100 to 86400000, got 99"},
        Case{"Staleness", "membership: {max_staleness: -1}\n",
             "run.yaml:2: membership.max_staleness: expected 0 to 1000, got -1"},
        Case{"Weights", "membership: {weights: steps}\n",
             "run.yaml:2: membership.weights: expected uniform | tokens | tokens_squared_per_step, got steps"},
        Case{"Merge", "membership: {merge: median}\n",
             "run.yaml:2: membership.merge: expected average | radial_directional, got median"},
        Case{"HeldOut", "eval: {held_out: 1}\n", "run.yaml:2: eval.held_out: expected 0 to less than 1, got 1"},
        Case{"Batches", "eval: {batches: 0}\n", "run.yaml:2: eval.batches: expected 1 to 1048576, got 0"},
        Case{"EvalRounds", "eval: {every_rounds: -1}\n",
             "run.yaml:2: eval.every_rounds: expected 0 to 1000000000, got -1"},
        Case{"Keep", "checkpoint: {keep: 0}\n", "run.yaml:2: checkpoint.keep: expected 1 to 1000, got 0"}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Models, RunYamlRefuses,
    testing::Values(
        Case{"Kind", "model: {kind: mamba}\n",
             "run.yaml:2: model.kind: expected llama | synthetic | external, got mamba"},
        Case{"HeadsThatDoNotDivide", "model: {hidden_size: 130}\n",
             "run.yaml:2: model.hidden_size: expected a multiple of num_attention_heads 4, got 130"},
        Case{"OddHead", "model:\n  hidden_size: 12\n",
             "run.yaml:3: model.hidden_size: expected an even size of each head (RoPE turns pairs), got 12 / 4 = 3"},
        Case{"KeyValueHeads", "model:\n  num_key_value_heads: 3\n",
             "run.yaml:2: model.num_attention_heads: expected a multiple of num_key_value_heads 3, got 4"},
        Case{"MoreKeyValueHeads", "model: {num_key_value_heads: 8}\n",
             "run.yaml:2: model.num_key_value_heads: expected 1 to 4 (at most num_attention_heads), got 8"},
        Case{"LargestInteger", "model: {num_hidden_layers: 9223372036854775807}\n",
             "run.yaml:2: model.num_hidden_layers: expected 1 to 2000, got 9223372036854775807"},
        Case{"Vocabulary", "model: {vocab_size: 0}\n", "run.yaml:2: model.vocab_size: expected 1 to 16777216, got 0"},
        Case{"Eps", "model: {rms_norm_eps: 0}\n", "run.yaml:2: model.rms_norm_eps: expected a number above 0, got 0"},
        Case{"KeyOfSynthetic", "model:\n  step_ms: 5\n",
             "run.yaml:3: model.step_ms: expected it only with kind synthetic, got it with kind llama"},
        Case{"KeyOfLlama", "model:\n  kind: synthetic\n  vocab_size: 5\n",
             "run.yaml:2: model.tensors: expected 1 to 20000 tensors, got 0\n"
             "run.yaml:4: model.vocab_size: expected it only with kind llama, got it with kind synthetic"},
        Case{"KeyOfLlamaBesideExternal", "model:\n  kind: external\n  vocab_size: 5\n",
             "run.yaml:4: model.vocab_size: expected it only with kind llama, got it with kind external"},
        Case{"OptimizerBesideExternal", "model: {kind: external}\ninner:\n  lr: 0.1\n",
             "run.yaml:4: inner.lr: expected no such key: the sites' scripts own their optimizer, got it with kind "
             "external"},
        Case{"SequenceBeyondTheModel", "model: {max_position_embeddings: 64}\ninner: {sequence_length: 65}\n",
             "run.yaml:3: inner.sequence_length: expected 0 to 64 (at most max_position_embeddings), got 65"},
        Case{"SequenceOfSynthetic",
             "model: {kind: synthetic, tensors: [{name: w, shape: [1]}]}\ninner: {sequence_length: 5}\n"
             "sync: {num_fragments: 1}\n",
             "run.yaml:3: inner.sequence_length: expected 0 (a key of kind llama), got 5"},
        Case{"DataMode", "data: {mode: split}\n", "run.yaml:2: data.mode: expected own | shared, got split"},
        Case{"TokenBytes", "data: {token_bytes: 3}\n", "run.yaml:2: data.token_bytes: expected 2 | 4, got 3"},
        Case{"NoTensors", "model:\n  kind: synthetic\n",
             "run.yaml:2: model.tensors: expected 1 to 20000 tensors, got 0"},
        Case{"RepeatedTensor",
             "model:\n  kind: synthetic\n  tensors:\n    - {name: w, shape: [1]}\n    - {name: w, shape: [2]}\n",
             "run.yaml:6: model.tensors[1].name: expected each tensor's name once, got w again"},
        Case{"NamelessTensor", "model: {kind: synthetic, tensors: [{shape: [1]}]}\n",
             "run.yaml:2: model.tensors[0].name: expected a name of 1 to 512 bytes, got 0 bytes"},
        Case{"ShapelessTensor", "model: {kind: synthetic, tensors: [{name: w}]}\n",
             "run.yaml:2: model.tensors[0].shape: expected a list of dimensions, got none"},
        Case{"EmptyTensor", "model: {kind: synthetic, tensors: [{name: w, shape: [5, 0]}]}\n",
             "run.yaml:2: model.tensors[0].shape[1]: expected 1 to 219902325555 (at most 2^40 values in a tensor), got "
             "0"},
        Case{"HugeTensor", "model: {kind: synthetic, tensors: [{name: w, shape: [1099511627776, 1099511627776]}]}\n",
             "run.yaml:2: model.tensors[0].shape[1]: expected 1 (at most 2^40 values in a tensor), got 1099511627776"},
        Case{"NanInit", "model: {kind: synthetic, tensors: [{name: w, shape: [1], init: .nan}]}\n",
             "run.yaml:2: model.tensors[0].init: expected a number of at most 2^100 in magnitude, got nan"},
        Case{"Init", "model: {kind: synthetic, init: zeros, tensors: [{name: w, shape: [1]}]}\n",
             "run.yaml:2: model.init: expected seeded, got zeros"},
        Case{"GradientKind", "model: {kind: synthetic, tensors: [{name: w, shape: [1]}], gradient: {kind: random}}\n",
             "run.yaml:2: model.gradient.kind: expected constant | noise, got random"},
        Case{"Apply", "model: {kind: synthetic, tensors: [{name: w, shape: [1]}], gradient: {apply: never}}\n",
             "run.yaml:2: model.gradient.apply: expected every_step | on_send, got never"},
        Case{"SiteName", "model: {kind: synthetic, tensors: [{name: w, shape: [1]}], gradient: {by_site: {a/b: 1}}}\n",
             "run.yaml:2: model.gradient.by_site.a/b: expected a site's name of 1 to 64 characters A-Z a-z 0-9 . _ -, "
             "got a/b"},
        Case{"MoreFragmentsThanSyntheticTensors",
             "model: {kind: synthetic, tensors: [{name: w, shape: [1]}]}\nsync: {num_fragments: 2}\n",
             "run.yaml:3: sync.num_fragments: expected 1 (the model's tensors), got 2"}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Fragments, RunYamlRefuses,
    testing::Values(
        Case{"OffsetsOfFewerFragments", "sync: {fragment_offsets: [1, 2]}\n",
             "run.yaml:2: sync.fragment_offsets: expected 4 items, one for each of num_fragments, got 2"},
        Case{"OffsetBeyondInterval", "sync: {sync_every: 5, fragment_offsets: [1, 2, 0, 5]}\n",
             "run.yaml:2: sync.fragment_offsets[3]: expected 0 to 4 (less than sync_every), got 5"},
        Case{"NegativeOffset", "sync: {fragment_offsets: [-1, 2, 0, 5]}\n",
             "run.yaml:2: sync.fragment_offsets[0]: expected 0 to 19 (less than sync_every), got -1"},
        Case{"FirstSend", "sync: {first_send: now}\n", "run.yaml:2: sync.first_send: expected full | offset, got now"},
        Case{"ListsOfOtherFragments", "sync:\n  fragments: [[a], [b]]\n",
             "run.yaml:3: sync.fragments: expected 4 items, one for each of num_fragments, got 2"},
        Case{"ListThatIsAText", "sync:\n  num_fragments: 1\n  fragments:\n    - model\n",
             "run.yaml:5: sync.fragments[0]: expected a list, got model"},
        Case{"EmptyList", "sync:\n  num_fragments: 2\n  fragments:\n    - [model]\n    - []\n",
             "run.yaml:6: sync.fragments[1]: expected a list of prefixes of tensor names, got none"},
        Case{"NumberForPrefix", "sync: {num_fragments: 1, fragments: [[[a]]]}\n",
             "run.yaml:2: sync.fragments[0][0]: expected a text, got a list"},
        Case{"RepeatedPrefix", "sync:\n  num_fragments: 2\n  fragments:\n    - [a, b]\n    - [b]\n",
             "run.yaml:6: sync.fragments[1][0]: expected each prefix once, got b again"},
        Case{"TensorOfNoPrefix",
             "sync:\n  num_fragments: 1\n  fragments: [[model]]\nmodel: {tie_word_embeddings: false}\n",
             "run.yaml:4: sync.fragments: expected a prefix of tensor lm_head.weight in sync.fragments, got none"},
        Case{"PrefixOfNoTensor", "sync:\n  num_fragments: 2\n  fragments: [[\"\"], [layers]]\n",
             "run.yaml:4: sync.fragments: expected a tensor in each of sync.fragments, got none in fragment 1 by the "
             "prefixes [layers]"},
        Case{"AssignmentBesideFragments",
             "sync:\n  num_fragments: 1\n  fragment_assignment: strided\n  fragments: [[\"\"]]\n",
             "run.yaml:4: sync.fragment_assignment: expected it only without sync.fragments, got it beside them"}),
    CaseName);

core::RunConfig NewRun(const char* id) {
  return {.run_id = id,
          .data = {.mode = core::kDataModeOfNewRuns},
          .codec_gain = core::kCodecGainOfNewRuns,
          .values = {.clip = core::kClipOfNewRuns}};
}

TEST(RunYaml, RunIdIsRequiredAndAName) {
  const auto error = [](const char* text) { return std::string(ParseRunYaml(text, "run.yaml").status().message()); };
  EXPECT_EQ(error(""), "run.yaml:1: run_id: expected a name of 1 to 64 characters A-Z a-z 0-9 . _ -, got none");
  EXPECT_EQ(error("seed: 5\n"),
            "run.yaml:1: run_id: expected a name of 1 to 64 characters A-Z a-z 0-9 . _ -, got none");
  EXPECT_EQ(error("\nrun_id: a/b\n"),
            "run.yaml:2: run_id: expected a name of 1 to 64 characters A-Z a-z 0-9 . _ -, got a/b");
}

TEST(RunYaml, MissingFileIsNamed) {
  const absl::Status status = ReadRunYaml("/nonexistent/run.yaml").status();
  EXPECT_EQ(status.message(), "cannot open /nonexistent/run.yaml: No such file or directory");
}

TEST(RunYaml, DeeplyNestedTextIsRefused) {
  EXPECT_THAT(ErrorOfYaml("seed: " + std::string(100'000, '[')), HasSubstr("run.yaml:2: expected YAML"));
}

TEST(RunYaml, EmptySectionTakesTheDefaults) {
  const absl::StatusOr<core::RunConfig> config = ParseRunYaml("run_id: a\nsync:\n  # sync_every: 5\n", "run.yaml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, NewRun("a"));
}

TEST(RunYaml, NumbersTakeEveryFormOfTheirType) {
  const absl::StatusOr<core::RunConfig> config = ParseRunYaml(
      "{run_id: 7, seed: 18446744073709551615, inner: {lr: 1e-3, clip: 2, weight_decay: .5, warmup_steps: +3}}", "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run_id, "7");
  EXPECT_EQ(config->seed, 18446744073709551615u);
  EXPECT_EQ(config->inner.lr, 0.001);
  EXPECT_EQ(config->inner.clip, 2);
  EXPECT_EQ(config->inner.weight_decay, 0.5);
  EXPECT_EQ(config->inner.warmup_steps, 3);
}

TEST(RunYaml, CodecsOfBothLegsTheirExceptionsAndCompression) {
  const absl::StatusOr<core::RunConfig> config = ParseRunYaml(
      "run_id: a\n"
      "codec: {up: onebit_adam_sign, down: rotated_lm2, exempt: [norm, embedding], zstd: true}\n",
      "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->codec.up, core::CodecId::kOnebitAdamSign);
  EXPECT_EQ(config->codec.down, core::CodecId::kRotatedLm2);
  EXPECT_EQ(config->codec.exempt, (std::vector{core::TensorKind::kNorm, core::TensorKind::kEmbedding}));
  EXPECT_TRUE(config->codec.zstd);
}

TEST(RunYaml, LengthOfARowIsTheModelsUnlessItIsGiven) {
  const auto length = [](const std::string& inner) {
    const auto config = ParseRunYaml("run_id: a\nmodel: {max_position_embeddings: 512}\n" + inner, "f");
    return config.ok() ? config->sequence_length() : -1;
  };
  EXPECT_EQ(length(""), 512);
  EXPECT_EQ(length("inner: {sequence_length: 0}\n"), 512);
  EXPECT_EQ(length("inner: {sequence_length: 64}\n"), 64);
}

TEST(RunYaml, OuterSgdHasNoMomentum) {
  const absl::StatusOr<core::RunConfig> config = ParseRunYaml("run_id: a\nouter: {optimizer: sgd, lr: 1}\n", "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->outer, (core::OuterParameters{.lr = 1, .momentum = 0}));
}

TEST(RunYaml, AnySitesGradientMayBeNan) {
  const absl::StatusOr<core::RunConfig> config = ParseRunYaml(
      "run_id: a\nsync: {num_fragments: 1}\n"
      "model: {kind: synthetic, tensors: [{name: w, shape: [3, 2], init: 0.25}], gradient: {by_site: {a: .nan, b: "
      "0.5}}}\n",
      "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(std::isnan(config->synthetic.gradient_by_site.at("a")));
  EXPECT_EQ(config->synthetic.gradient_by_site.at("b"), 0.5f);
  EXPECT_EQ(config->synthetic.tensors[0], (core::SyntheticTensor{"w", {3, 2}, 0.25f}));
}

TEST(RunYaml, TheExampleHasEveryKeyWithItsDefault) {
  const std::string path = InSource("deploy/run.yaml");
  const absl::StatusOr<core::RunConfig> config = ReadRunYaml(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, NewRun("demo"));

  // Every key of the JSON stands in the example, too: `"key":` there, `key:` here.
  const std::string example = ReadAll(path);
  const std::string json = RunConfigJson(NewRun("demo"));
  for (size_t at = json.find("\":"); at != std::string::npos; at = json.find("\":", at + 1)) {
    const size_t begin = json.rfind('"', at - 1) + 1;
    EXPECT_THAT(example, HasSubstr(json.substr(begin, at - begin) + ":"));
  }
}

TEST(Placement, PlacementAtSitesTakesAPartOfEachFragmentForEachShard) {
  auto config = ParseRunYaml("run_id: r\nplacement: sites\n", "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->sync.parts, 1);
  ASSERT_TRUE(PlaceShards(3, &*config).ok());
  EXPECT_EQ(config->sync.parts, 3);
  EXPECT_TRUE(PlaceShards(3, &*config).ok());  // again, as a start does
  EXPECT_THAT(std::string(PlaceShards(2, &*config).message()), HasSubstr("as many as sync.parts, 3; got 2"));
  config->sync.parts = 1;
  EXPECT_THAT(std::string(PlaceShards(1, &*config).message()), HasSubstr("at least 2; got 1"));
  config->placement = core::Placement::kHub;
  EXPECT_TRUE(PlaceShards(1, &*config).ok());
  EXPECT_EQ(config->sync.parts, 1);
}

TEST(Placement, PartsNeedTheAverageAndEnoughUnits) {
  EXPECT_THAT(std::string(ParseRunYaml("run_id: r\nsync: {parts: 2}\nmembership: {merge: radial_directional}\n", "f")
                              .status()
                              .message()),
              HasSubstr("average with sync.parts"));
  EXPECT_THAT(std::string(ParseRunYaml("run_id: r\nsync: {parts: 200}\n", "f").status().message()),
              HasSubstr("sync.parts: expected at most"));
}

TEST(LevelsYaml, LevelsOfASiteAndTheWanAreRead) {
  const auto levels = ParseLevelsYaml(
      "levels:\n"
      "  - {name: pair, of: 2, gbyte_per_s: 200, latency_us: 2}\n"
      "  - {name: node, of: 4, gbyte_per_s: 50}\n"
      "  - {name: wan, of: 3, mbit_per_s: 200, rtt_ms: 50}\n",
      "l.yaml");
  ASSERT_TRUE(levels.ok()) << levels.status();
  EXPECT_EQ(levels->ranks(), 8);
  EXPECT_EQ(levels->site[0], (core::LinkLevel{.name = "pair", .of = 2, .bytes_per_s = 200e9, .latency_s = 2e-6}));
  EXPECT_EQ(levels->site[1].latency_s, 0);
  EXPECT_EQ(*levels->wan, (core::LinkLevel{.name = "wan", .of = 3, .bytes_per_s = 25e6, .latency_s = 25e-3}));
}

std::string Refusal(const std::string& levels) {
  return std::string(ParseLevelsYaml("levels:\n" + levels, "l.yaml").status().message());
}

TEST(LevelsYaml, WhatIsWrongIsToldWithLineKeyAndExpectation) {
  EXPECT_EQ(Refusal("  - {name: a, of: 0, gbyte_per_s: 1}\n"), "l.yaml:2: levels[0].of: expected 1 to 1000000, got 0");
  EXPECT_EQ(Refusal("  - {name: a, of: 2}\n"),
            "l.yaml:2: levels[0]: expected gbyte_per_s (within a site) or mbit_per_s (between sites), got neither");
  EXPECT_EQ(Refusal("  - {name: a, of: 2, gbyte_per_s: 1, rtt_ms: 3}\n"),
            "l.yaml:2: levels[0]: expected latency_us beside gbyte_per_s, got rtt_ms");
  EXPECT_EQ(Refusal("  - {name: a, of: 2, gbyte_per_s: 1}\n  - {name: a, of: 2, gbyte_per_s: 1}\n"),
            "l.yaml:3: levels[1].name: expected each level's name once, got a again");
  EXPECT_EQ(Refusal("  - {name: w, of: 2, mbit_per_s: 1}\n  - {name: a, of: 2, gbyte_per_s: 1}\n"),
            "l.yaml:2: levels[0]: expected mbit_per_s (between sites) in the last level alone, got it before");
  EXPECT_EQ(Refusal("  - {name: w, of: 2, mbit_per_s: 1}\n"),
            "l.yaml:1: levels: expected 1 to 8 levels, with gbyte_per_s in the first, got 1 levels, 0 of them within a "
            "site");
  EXPECT_EQ(Refusal("  - {name: a, of: 1000000, gbyte_per_s: 1}\n  - {name: b, of: 2, gbyte_per_s: 1}\n"),
            "l.yaml:3: levels[1].of: expected 1 to 1000000 (ranks of a site, all levels together), got 2000000");
  EXPECT_EQ(Refusal("  - {name: a, of: 2, gbyte: 1}\n"),
            "l.yaml:2: levels[0].gbyte: expected one of name, of, gbyte_per_s, latency_us, mbit_per_s, rtt_ms, got an "
            "unknown key");
}

TEST(LevelsYaml, TheExampleIsRight) {
  const auto levels = ReadLevelsYaml(EXAMPLE_LEVELS);
  ASSERT_TRUE(levels.ok()) << levels.status();
  EXPECT_EQ(levels->ranks(), 384);
}

}  // namespace
}  // namespace causeway::formats
