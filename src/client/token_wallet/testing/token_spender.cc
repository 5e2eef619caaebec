// For tests: asks a node once with each token that is given, so that a test can present what an honest client never
// would. Arguments: NODE POLICY MODEL TOKEN-HEX…; prints the name of each outcome's code, "OK" for an answer.
#include <cstdio>

#include "client/session/session.h"
#include "inference.pb.h"

namespace {

using namespace tie;

class OneToken final : public client::TokenSource {
 public:
  explicit OneToken(Bytes token) : token_(std::move(token)) {}
  Result<Bytes> take(ByteView) override { return token_; }

 private:
  Bytes token_;
};

Result<void> ask(const char* node, const char* policy, const char* model, const char* token_hex) {
  TIE_TRY(Bytes token, from_hex(token_hex));
  client::SessionOptions options;
  options.node = node;
  options.policy_path = policy;
  options.tokens = std::make_shared<OneToken>(std::move(token));
  TIE_TRY(auto session, client::Session::open(std::move(options)));
  v1::InferenceRequest request;
  request.set_model(model);
  auto* message = request.mutable_conversation()->add_messages();
  message->set_role("user");
  message->add_parts()->set_text("Hello");
  request.mutable_sampling()->set_max_tokens(2);
  auto answer = session->ask(request, std::make_shared<client::Cancellation>());
  v1::InferenceEvent event;
  for (;;) {
    TIE_TRY(const bool more, answer->next(event));
    if (!more) return {};
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  for (int i = 4; i < argc; ++i) {
    auto asked = ask(argv[1], argv[2], argv[3], argv[i]);
    const Error error = asked ? Error{Code::kOk, ""} : asked.error();
    std::printf("%s %s\n", asked ? "OK" : error_info(error.code).name, error.message.c_str());
  }
  return 0;
}
