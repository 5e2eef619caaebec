// One OpenAI request being answered by the node: asks each payload, hands events to the writer. Private to proxy.cc.
#pragma once
#include <optional>

#include "client/proxy/http_server.h"
#include "client/proxy/openai_answer.h"
#include "client/session/session.h"
#include "client/turn_keys/answer_messages.h"
#include "client/turn_keys/turn_key_table.h"

namespace tie::client {

class AnswerRun {
 public:
  // turn_keys: null when no conversation is to be found again. It outlives the run. `partition`: see TurnKeyTable.
  AnswerRun(std::shared_ptr<Session> session, OpenAiRequest request, TurnKeyTable* turn_keys = nullptr,
            ByteView partition = {});
  // Cancels whatever runs; any thread.
  void cancel();

  // The whole answer as JSON.
  std::expected<std::string, ApiError> whole();

  // Streaming: begin() waits for the first event, so that errors before it still get an HTTP status; then step() until
  // it is false.
  std::optional<ApiError> begin();
  bool step(const std::function<bool(std::string_view)>& write);

 private:
  std::optional<ApiError> collect(size_t index, WholeAnswer& into);
  // The next event's text into pending_; false at the end of the last payload.
  std::expected<bool, ApiError> pull();
  void remember(size_t index, const v1::InferenceEvent& event);
  void end_turn(size_t index);
  ApiError failed(ApiError error);
  ApiError describe(const Answer& answer, const Error& error) const;
  std::unique_ptr<Answer> ask(size_t index) { return session_->ask(request_.payloads[index], cancels_[index]); }

  std::shared_ptr<Session> session_;
  OpenAiRequest request_;
  std::vector<std::shared_ptr<Cancellation>> cancels_;  // by payload
  struct Remembered {
    Turn turn;
    AnswerMessages answers;
    uint32_t tokens = 0;  // that the node keeps of this turn: the prompt and the first sample's
  };
  std::vector<Remembered> remembered_;  // by payload; empty without turn keys
  std::unique_ptr<Answer> current_;
  size_t current_index_ = 0;
  v1::InferenceEvent event_;
  std::optional<StreamedAnswer> streamed_;
  std::string pending_;
  bool ended_ = false;
  std::mutex mutex_;                               // of what several payloads share while they run at once
  std::vector<std::unique_ptr<Answer>> finished_;  // closed when this object dies, after the reply is out
};

}  // namespace tie::client
