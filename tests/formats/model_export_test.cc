#include "formats/model_export.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "core/layout.h"
#include "formats/export_form.h"
#include "formats/hf_config.h"
#include "formats/safetensors.h"
#include "formats/sha256.h"
#include "tests/formats/run_python.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

// "big" fills one unit and one value, so its fragment has padding in the middle and at the end.
const core::Manifest kExported = {{.name = "big", .shape = {core::kUnitValues + 1}},
                                  {.name = "other", .shape = {2}},
                                  {.name = "small", .shape = {1, 2}}};

// Values count up in manifest order; padding is 99.
std::vector<std::vector<float>> Fragments(const core::FragmentMap& map) {
  std::vector<std::vector<float>> fragments;
  for (const core::Fragment& fragment : map.fragments()) {
    std::vector<float> values(fragment.padded_values(), 99.0f);
    for (const core::TensorPlace& place : fragment.tensors) {
      const auto begin = values.begin() + place.first_unit * core::kUnitValues;
      std::iota(begin, begin + place.values, 10'000.0f * static_cast<float>(place.tensor));
    }
    fragments.push_back(values);
  }
  return fragments;
}

absl::Status Export(const std::string& dir, const ExportForm& form) {
  const core::FragmentMap map(kExported, {{0, 2}, {1}});
  const std::vector<std::vector<float>> values = Fragments(map);
  const std::vector<std::span<const float>> fragments(values.begin(), values.end());
  const core::Version versions[2] = {7, 6};
  return WriteExport(dir, form, map, fragments, versions);
}

TEST(ModelExport, TensorsAreUnpaddedInManifestOrder) {
  const TemporaryFolder folder;
  const std::string dir = folder / "new/export";
  ASSERT_TRUE(Export(dir, {.run_id = "demo"}).ok());
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(dir + "/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 3u);
  std::vector<float> big(core::kUnitValues + 1);
  std::vector<float> expected(big.size());
  std::iota(expected.begin(), expected.end(), 0.0f);
  ASSERT_TRUE(file->Read("big", big).ok());
  EXPECT_EQ(big, expected);
  std::vector<float> pair(2);
  ASSERT_TRUE(file->Read("other", pair).ok());
  EXPECT_THAT(pair, ElementsAre(10'000, 10'001));
  ASSERT_TRUE(file->Read("small", pair).ok());
  EXPECT_THAT(pair, ElementsAre(20'000, 20'001));
  for (size_t i = 0; i < kExported.size(); ++i) {
    EXPECT_EQ(file->tensors()[i].name, kExported[i].name);
    EXPECT_EQ(file->tensors()[i].shape, kExported[i].shape);
  }
  EXPECT_EQ(file->metadata(),
            (std::map<std::string, std::string>{{"format", "pt"}, {"run_id", "demo"}, {"versions", "7,6"}}));
}

TEST(ModelExport, FilesOfTheFormLieBesideTheWeights) {
  const TemporaryFolder folder;
  ASSERT_TRUE(Export(folder / "out", {.run_id = "demo", .files = {{"config.json", "{}"}, {"a.model", "\xff"}}}).ok());
  EXPECT_EQ(ReadAll(folder / "out/config.json"), "{}");
  EXPECT_EQ(ReadAll(folder / "out/a.model"), "\xff");
}

TEST(ModelExport, Bfloat16HasTheSameTensorsInHalfTheBytes) {
  const TemporaryFolder folder;
  ASSERT_TRUE(Export(folder / "out", {.run_id = "demo", .type = ValueType::kBfloat16}).ok());
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(folder / "out/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("other")->dtype, "BF16");
  EXPECT_EQ(file->Find("other")->bytes, 4);
  std::vector<float> pair(2);
  ASSERT_TRUE(file->Read("other", pair).ok());
  EXPECT_THAT(pair, ElementsAre(9984, 9984));  // the nearest to 10000 and 10001 with 8 bits
}

TEST(ModelExport, AliasesAndFrozenTensorsAreLeftOut) {
  const TemporaryFolder folder;
  core::Manifest manifest = kExported;
  manifest.insert(manifest.begin(), {.name = "base", .shape = {9}, .frozen = true});
  manifest.push_back({.name = "tied", .shape = {2}, .alias_of = "other"});
  const core::FragmentMap map(manifest, {{1, 3}, {2}});
  const std::vector<std::vector<float>> values = Fragments(map);
  const std::vector<std::span<const float>> fragments(values.begin(), values.end());
  const core::Version versions[2] = {1, 1};
  const core::RunConfig config{.run_id = "any", .model_kind = core::ModelKind::kExternal};
  const absl::StatusOr<ExportForm> form = MakeExportForm(config, "float32", /*assets=*/"");
  ASSERT_TRUE(form.ok()) << form.status();
  ASSERT_TRUE(WriteExport(folder / "external", *form, map, fragments, versions).ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "external/config.json"));
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(folder / "external/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::string> names;
  for (const auto& tensor : file->tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("big", "other", "small"));
  std::vector<float> pair(2);
  ASSERT_TRUE(file->Read("small", pair).ok());
  EXPECT_THAT(pair, ElementsAre(30'000, 30'001));
}

TEST(ModelExport, SumsAreThoseOfTheFilesAndFindAFlippedBit) {
  const TemporaryFolder folder;
  for (const char* run : {"first", "again"}) {
    ASSERT_TRUE(Export(folder / "out", {.run_id = run, .files = {{"config.json", "{}"}}}).ok());
    EXPECT_EQ(std::system(("cd " + (folder / "out") + " && sha256sum --check --strict --status SHA256SUMS").c_str()),
              0);
    EXPECT_THAT(ReadAll(folder / "out/SHA256SUMS"),
                AllOf(HasSubstr("  config.json\n"), HasSubstr("  model.safetensors\n")));
  }
  EXPECT_TRUE(CheckSha256Sum(folder / "out", "model.safetensors").ok());
  std::string weights = ReadAll(folder / "out/model.safetensors");
  weights[weights.size() / 2] ^= 4;
  folder.Write("out/model.safetensors", weights);
  const absl::Status damaged = CheckSha256Sum(folder / "out", "model.safetensors");
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("out/model.safetensors is damaged: SHA256SUMS beside it says"));
  EXPECT_TRUE(CheckSha256Sum(folder / "out", "other").ok()) << "nothing is said of it";
  EXPECT_TRUE(CheckSha256Sum(folder / "elsewhere", "model.safetensors").ok()) << "nor of any file";
}

TEST(ModelExport, FolderThatCannotBeMadeIsNamed) {
  const TemporaryFolder folder;
  folder.Write("file", "");
  const absl::Status status = Export(folder / "file/export", {.run_id = "demo"});
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot create folder " + (folder / "file/export")));
}

TEST(ModelExport, ReplacesItsOwnRunsAndNoOtherModel) {
  const TemporaryFolder folder;
  const ExportForm form = {.run_id = "demo", .files = {{"config.json", "{}"}}};
  const auto why = [&](const std::string& name) {
    return std::string(CheckReplacesNothingElse(folder / name, form).message());
  };
  EXPECT_EQ(why("new"), "");
  for (const char* name : {"repository", "base", "config"}) std::filesystem::create_directory(folder / name);
  folder.Write("repository/README.md", "about the model");
  EXPECT_EQ(why("repository"), "") << "what the export leaves alone";
  ASSERT_TRUE(Export(folder / "own", form).ok());
  EXPECT_EQ(why("own"), "");
  EXPECT_EQ(FindExport(folder / "own")->rounds, 6);
  ASSERT_TRUE(Export(folder / "other", {.run_id = "other"}).ok());
  EXPECT_THAT(why("other"), HasSubstr("with an export of run other"));
  folder.Write("base/model-00001-of-00002.safetensors", "weights");
  EXPECT_THAT(why("base"), HasSubstr("with a model-00001-of-00002.safetensors that no export has written"));
  folder.Write("config/config.json", "{}");
  folder.Write("config/model.safetensors.tmp", "half");
  EXPECT_EQ(why("config"), "") << "an export was interrupted";
  folder.Write("config/config.json", "{\"model_type\": \"gpt2\"}");
  EXPECT_THAT(why("config"), HasSubstr("with a config.json that no export has written"));
}

TEST(LocalDump, HoldsTheTensorsAsTheyAre) {
  const TemporaryFolder folder;
  const core::Manifest manifest = {{.name = "w", .shape = {1, 2}}};
  const float values[2] = {1, -2};
  const std::span<const float> tensors[1] = {values};
  ASSERT_TRUE(WriteLocalDump(folder / "dump.safetensors", manifest, tensors).ok());
  EXPECT_EQ(RunPython("tests/formats/read_safetensors.py", folder / "dump.safetensors"),
            "format=pt\nw float32 [1, 2] 0000803f000000c0\n");
}

core::RunConfig RunOf(int64_t vocab_size) {
  core::RunConfig config{.run_id = "demo"};
  config.llama.vocab_size = vocab_size;
  return config;
}

// A Hugging Face folder of the model of RunOf(1000), with special tokens.
class Assets {
 public:
  Assets() {
    json config = json::parse(HfConfigJson(RunOf(1000).llama));
    config["bos_token_id"] = 1;
    config["eos_token_id"] = {2, 3};
    Write("config.json", config.dump());
    Write("tokenizer.json", "{ \"as\": \"it is\"}");
  }
  void Write(const char* name, const std::string& contents) { folder_.Write(name, contents); }
  void Change(const char* key, const json& value) {
    json config = json::parse(ReadAll(folder_ / "config.json"));
    config[key] = value;
    Write("config.json", config.dump());
  }
  void Remove(const char* name) { std::filesystem::remove(folder_ / name); }
  std::string ErrorWith(const core::RunConfig& config) {
    const absl::StatusOr<ExportForm> form = MakeExportForm(config, "float32", folder_.path());
    return form.ok() ? "accepted" : std::string(form.status().message());
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

TEST(ExportForm, ModelOfBytesHasATokenizerOfBytes) {
  const absl::StatusOr<ExportForm> form = MakeExportForm(RunOf(256), "bfloat16", "");
  ASSERT_TRUE(form.ok()) << form.status();
  EXPECT_EQ(form->run_id, "demo");
  EXPECT_EQ(form->type, ValueType::kBfloat16);
  EXPECT_EQ(form->note, "");
  EXPECT_THAT(form->files, ElementsAre(testing::Key("config.json"), testing::Key("generation_config.json"),
                                       testing::Key("tokenizer.json"), testing::Key("tokenizer_config.json")));
  EXPECT_EQ(json::parse(form->files.at("config.json"))["torch_dtype"], "bfloat16");
  EXPECT_EQ(json::parse(form->files.at("generation_config.json")), json::parse(R"({"_from_model_config": true})"));
  EXPECT_EQ(json::parse(form->files.at("tokenizer_config.json"))["tokenizer_class"], "PreTrainedTokenizerFast");
}

// The names of the bytes are GPT-2's, so that the library's ByteLevel decoder knows them.
TEST(ExportForm, TokenIOfTheByteTokenizerIsByteI) {
  const absl::StatusOr<ExportForm> form = MakeExportForm(RunOf(256), "float32", "");
  ASSERT_TRUE(form.ok()) << form.status();
  const json tokenizer = json::parse(form->files.at("tokenizer.json"));
  const json& vocabulary = tokenizer["model"]["vocab"];
  ASSERT_EQ(vocabulary.size(), 256u);
  std::vector<bool> seen(256);
  for (const auto& [name, id] : vocabulary.items()) seen.at(id.get<int>()) = true;
  EXPECT_EQ(seen, std::vector<bool>(256, true));
  EXPECT_EQ(vocabulary["A"], 'A');
  EXPECT_EQ(vocabulary["\u0120"], ' ');  // Ġ, the best-known of them
  EXPECT_EQ(vocabulary["\u010a"], '\n');
  EXPECT_EQ(vocabulary["\u0100"], 0);
  EXPECT_EQ(vocabulary["\u0143"], 0xad);  // the last one without a character of its own
  EXPECT_EQ(vocabulary["\u00ff"], 0xff);
  EXPECT_TRUE(tokenizer["model"]["merges"].empty());
}

TEST(ExportForm, AssetsAreCopiedAsTheyAre) {
  Assets assets;
  assets.Write("tokenizer.model", std::string("\0\xff", 2));
  assets.Write("chat_template.jinja", "{{ x }}");
  assets.Write("generation_config.json", "{\"temperature\":0.6}");
  assets.Write("model.safetensors", "weights");
  assets.Write("README.md", "text");
  const absl::StatusOr<ExportForm> form = MakeExportForm(RunOf(1000), "float32", assets.path());
  ASSERT_TRUE(form.ok()) << form.status();
  EXPECT_THAT(form->files, ElementsAre(testing::Key("chat_template.jinja"), testing::Key("config.json"),
                                       testing::Key("generation_config.json"), testing::Key("tokenizer.json"),
                                       testing::Key("tokenizer.model")));
  EXPECT_EQ(form->files.at("tokenizer.json"), "{ \"as\": \"it is\"}");
  EXPECT_EQ(form->files.at("tokenizer.model"), std::string("\0\xff", 2));
  EXPECT_EQ(form->files.at("generation_config.json"), "{\"temperature\":0.6}");
}

TEST(ExportForm, SpecialTokensAreThoseOfTheAssets) {
  Assets assets;
  const absl::StatusOr<ExportForm> form = MakeExportForm(RunOf(1000), "float32", assets.path());
  ASSERT_TRUE(form.ok()) << form.status();
  const json config = json::parse(form->files.at("config.json"));
  EXPECT_EQ(config["bos_token_id"], 1);
  EXPECT_EQ(config["eos_token_id"], json({2, 3}));
  EXPECT_TRUE(config["pad_token_id"].is_null());
  EXPECT_EQ(json::parse(form->files.at("generation_config.json")),
            json::parse(R"({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": [2, 3]})"));
}

TEST(ExportForm, AssetsOfAnotherModelAreRefusedByKey) {
  Assets assets;
  EXPECT_THAT(assets.ErrorWith(RunOf(999)),
              EndsWith("config.json: vocab_size: expected 999, got 1000: the tokenizer is of another model than the "
                       "run's"));
  assets.Change("rope_theta", 5e5);
  EXPECT_THAT(assets.ErrorWith(RunOf(1000)), testing::HasSubstr("rope_theta: expected 10000.0, got 500000.0"));
  assets.Change("model_type", "qwen2");
  EXPECT_THAT(assets.ErrorWith(RunOf(1000)), testing::HasSubstr("config.json: model_type"));
}

TEST(ExportForm, AssetsThatAreNotThereAreRefused) {
  Assets assets;
  assets.Remove("tokenizer.json");
  EXPECT_THAT(assets.ErrorWith(RunOf(1000)),
              EndsWith("expected a tokenizer (tokenizer.json, tokenizer.model or vocab.json), got none"));
  assets.Remove("config.json");
  EXPECT_THAT(assets.ErrorWith(RunOf(1000)), EndsWith("config.json: No such file or directory"));
  EXPECT_THAT(std::string(MakeExportForm(RunOf(256), "int8", "").status().message()),
              EndsWith("expected float32 or bfloat16, got int8"));
}

TEST(ExportForm, OnlyALlamaHasFilesBesideTheWeights) {
  core::RunConfig config = RunOf(1000);
  EXPECT_THAT(MakeExportForm(config, "float32", "")->note, testing::StartsWith("exports have no tokenizer"));
  config.model_kind = core::ModelKind::kSynthetic;
  const absl::StatusOr<ExportForm> form = MakeExportForm(config, "float32", "");
  ASSERT_TRUE(form.ok()) << form.status();
  EXPECT_TRUE(form->files.empty());
  EXPECT_EQ(form->note, "");
  EXPECT_THAT(std::string(MakeExportForm(config, "float32", "some/dir").status().message()),
              EndsWith("expected a run of a language model, got assets some/dir for another kind"));
}

TEST(ExportForm, AModelThatSitesBringHasTheFilesThatTheyGave) {
  core::RunConfig config = RunOf(1000);
  config.model_kind = core::ModelKind::kExternal;
  const auto note = [&](std::map<std::string, std::string> files) {
    return MakeExportForm(config, "float32", "", std::move(files))->note;
  };
  EXPECT_THAT(note({}), testing::StartsWith("exports have weights alone"));
  EXPECT_THAT(note({{"config.json", "{}"}}), testing::StartsWith("exports have no tokenizer"));
  EXPECT_EQ(note({{"config.json", "{}"}, {"tokenizer.json", "{}"}}), "");
  EXPECT_EQ(note({{"adapter_config.json", "{}"}}), "");
  Assets assets;
  const absl::StatusOr<ExportForm> form =
      MakeExportForm(config, "float32", assets.path(), {{"config.json", "the site's"}, {"vocab.txt", "a site's, too"}});
  ASSERT_TRUE(form.ok()) << form.status();
  EXPECT_THAT(form->files,
              ElementsAre(testing::Key("config.json"), testing::Key("tokenizer.json"), testing::Key("vocab.txt")));
  EXPECT_NE(form->files.at("config.json"), "the site's");
}

}  // namespace
}  // namespace causeway::formats
