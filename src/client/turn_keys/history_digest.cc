#include "client/turn_keys/history_digest.h"

namespace tie::client {
namespace {

// Fields with their lengths, so that no two messages give the same bytes.
class FieldHasher {
 public:
  void add(uint8_t kind, std::string_view field) {
    Bytes head = {kind};
    append_u64_be(head, field.size());
    hash_.update(head);
    hash_.update(as_bytes(field));
  }
  crypto::Digest finish() { return hash_.finish(); }

 private:
  crypto::Sha256 hash_;
};

}  // namespace

crypto::Digest message_digest(const v1::Message& message) {
  FieldHasher hash;
  hash.add('r', message.role());
  for (const v1::ContentPart& part : message.parts()) {
    if (part.kind_case() == v1::ContentPart::kImage) {
      hash.add('i', part.image());
    } else if (!part.text().empty()) {
      hash.add('t', part.text());
    }
  }
  for (const v1::ToolCall& call : message.tool_calls()) {
    hash.add('c', call.id());
    hash.add('n', call.name());
    hash.add('a', call.arguments_json());
  }
  if (!message.tool_call_id().empty()) hash.add('o', message.tool_call_id());
  if (!message.name().empty()) hash.add('w', message.name());
  return hash.finish();
}

crypto::Digest extend_history(ByteView secret, const crypto::Digest& history, const crypto::Digest& message) {
  return crypto::sha256({secret, history, message});
}

std::vector<crypto::Digest> history_digests(ByteView secret, ByteView partition, const v1::InferenceRequest& request) {
  crypto::Digest whose = crypto::sha256(partition), model = crypto::sha256(as_bytes(request.model())),
                 prompt = crypto::sha256(as_bytes(request.prompt_id()));
  crypto::Digest history = crypto::sha256({secret, whose, model, prompt});
  std::vector<crypto::Digest> out;
  out.reserve(static_cast<size_t>(request.conversation().messages_size()));
  for (const v1::Message& message : request.conversation().messages()) {
    history = extend_history(secret, history, message_digest(message));
    out.push_back(history);
  }
  return out;
}

}  // namespace tie::client
