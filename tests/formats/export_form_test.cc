#include "formats/export_form.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "formats/hf_config.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::EndsWith;
using testing::Key;

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
  EXPECT_THAT(form->files, ElementsAre(Key("config.json"), Key("generation_config.json"), Key("tokenizer.json"),
                                       Key("tokenizer_config.json")));
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
  EXPECT_THAT(form->files, ElementsAre(Key("chat_template.jinja"), Key("config.json"), Key("generation_config.json"),
                                       Key("tokenizer.json"), Key("tokenizer.model")));
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
  EXPECT_THAT(form->files, ElementsAre(Key("config.json"), Key("tokenizer.json"), Key("vocab.txt")));
  EXPECT_NE(form->files.at("config.json"), "the site's");
}

}  // namespace
}  // namespace causeway::formats
