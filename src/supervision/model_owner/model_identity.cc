#include "supervision/model_owner/model_identity.h"

#include <algorithm>

namespace tie::owner {
namespace {

constexpr size_t kMaxNameBytes = 64;

bool letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

bool valid_model_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes || !letter_or_digit(name[0])) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return letter_or_digit(c) || c == '.' || c == '_' || c == '-'; });
}

crypto::Digest model_id(const ModelDigests& digests) {
  return crypto::sha256({ByteView(digests.weights), ByteView(digests.tokenizer), ByteView(digests.chat_template)});
}

Result<crypto::Digest> model_id_of_folder(const std::string& folder) {
  ModelDigests digests;
  TIE_TRY(digests.weights, crypto::sha256_file(folder + "/" + kWeightsFile));
  TIE_TRY(digests.tokenizer, crypto::sha256_file(folder + "/" + kTokenizerFile));
  auto chat_template = crypto::sha256_file(folder + "/" + kTemplateFile);
  if (chat_template) {
    digests.chat_template = *chat_template;
  } else if (chat_template.error().code == Code::kNotFound) {
    digests.chat_template = crypto::sha256(ByteView{});
  } else {
    return std::unexpected(std::move(chat_template.error()));
  }
  return model_id(digests);
}

}  // namespace tie::owner
