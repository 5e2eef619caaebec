// What the app knows of each model it may be asked for: the mapped vocabulary, the compiled chat template, the facts of
// model.toml. Loaded while the process warms up; immutable afterwards. Files: ASSETS/models/NAME/{tokenizer.img,
// template.jinja, model.toml}.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "os/memfd.h"
#include "request/cloud_app/constraints/tool_syntax.h"
#include "sampling.pb.h"
#include "text/prompt.h"

namespace tie::request::app {

struct ServedModel {
  std::string name;
  std::string model_id;  // hex, for the client to compare with the claims
  uint32_t context_tokens = 0;
  v1::SamplingParams defaults;  // [sampling] of model.toml
  bool template_knows_developer = false;
  ToolSyntax tool_syntax;
  os::Mapping tokenizer_image;
  std::unique_ptr<text::Vocab> vocab;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::PromptBuilder> prompts;
};

// kCorrupt or kIo, naming the file.
Result<std::unique_ptr<ServedModel>> load_model(const std::string& folder, const std::string& name);

class ServedModels {
 public:
  // Every model of the assets. kNotFound when there is none.
  static Result<ServedModels> load(const std::string& assets);
  const ServedModel* find(const std::string& name) const;
  const std::map<std::string, std::unique_ptr<ServedModel>>& all() const { return models_; }

 private:
  std::map<std::string, std::unique_ptr<ServedModel>> models_;
};

}  // namespace tie::request::app
