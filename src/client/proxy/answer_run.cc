#include "client/proxy/answer_run.h"

#include <atomic>
#include <thread>

namespace tie::client {
namespace {
constexpr size_t kParallelPrompts = 8;  // of one legacy completions call
}

AnswerRun::AnswerRun(std::shared_ptr<Session> session, OpenAiRequest request, TurnKeyTable* turn_keys,
                     ByteView partition)
    : session_(std::move(session)), request_(std::move(request)) {
  for (v1::InferenceRequest& payload : request_.payloads) {
    cancels_.push_back(std::make_shared<Cancellation>());
    if (turn_keys != nullptr && request_.cache && request_.endpoint == Endpoint::kChat)
      remembered_.push_back({turn_keys->begin(partition, payload), AnswerMessages(request_.samples), 0});
  }
}

void AnswerRun::remember(size_t index, const v1::InferenceEvent& event) {
  if (remembered_.empty()) return;
  remembered_[index].answers.add(event);
  if (!event.has_usage()) return;
  uint32_t answer = request_.samples == 1 ? event.usage().completion_tokens() : 0;  // of several: the sum alone is said
  remembered_[index].tokens = event.usage().prompt_tokens() + answer;
}

// Before the application can read the end of its answer, since its next turn may come at once.
void AnswerRun::end_turn(size_t index) {
  if (remembered_.empty()) return;
  remembered_[index].turn.finish(remembered_[index].answers.messages(), remembered_[index].tokens);
}

// Likewise before it can read the error, since it may ask again at once, under the same keys.
ApiError AnswerRun::failed(ApiError error) {
  remembered_.clear();
  return error;
}

void AnswerRun::cancel() {
  for (auto& cancel : cancels_) cancel->cancel();
}

ApiError AnswerRun::describe(const Answer& answer, const Error& error) const {
  ApiError out = api_error(error, answer.error_param());
  if (answer.was_cut()) out.openai_code = "answer_cut";
  return out;
}

std::optional<ApiError> AnswerRun::collect(size_t index, WholeAnswer& into) {
  auto answer = ask(index);
  v1::InferenceEvent event;
  for (;;) {
    auto got = answer->next(event);
    if (!got) return describe(*answer, got.error());
    std::lock_guard lock(mutex_);
    if (!*got) {
      end_turn(index);
      if (!current_)
        current_ = std::move(answer);  // for its node
      else
        finished_.push_back(std::move(answer));
      return std::nullopt;
    }
    remember(index, event);
    auto added = into.add(index, event);
    if (!added) return api_error(added.error());
  }
}

std::expected<std::string, ApiError> AnswerRun::whole() {
  WholeAnswer collected(request_);
  std::optional<ApiError> failure;
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t index = next++; index < request_.payloads.size(); index = next++) {
      auto error = collect(index, collected);
      if (!error) continue;
      cancel();
      std::lock_guard lock(mutex_);
      if (!failure) failure = std::move(error);
      return;
    }
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < std::min(kParallelPrompts, request_.payloads.size()); ++i) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
  if (failure) return std::unexpected(failed(std::move(*failure)));
  return collected.json(new_answer_head(request_.endpoint, request_.model, current_->node()->release_short()));
}

std::expected<bool, ApiError> AnswerRun::pull() {
  for (;;) {
    if (!current_) current_ = ask(current_index_);
    auto got = current_->next(event_);
    if (!got) return std::unexpected(describe(*current_, got.error()));
    if (!streamed_) {
      streamed_.emplace(request_,
                        new_answer_head(request_.endpoint, request_.model, current_->node()->release_short()));
    }
    if (*got) {
      remember(current_index_, event_);
      auto added = streamed_->add(current_index_, event_, pending_);
      if (!added) return std::unexpected(api_error(added.error()));
      return true;
    }
    end_turn(current_index_);
    if (current_index_ + 1 == request_.payloads.size()) {
      streamed_->end(pending_);
      return false;
    }
    ++current_index_;
    finished_.push_back(std::move(current_));
  }
}

std::optional<ApiError> AnswerRun::begin() {
  auto more = pull();
  if (!more) return failed(std::move(more.error()));
  ended_ = !*more;
  return std::nullopt;
}

bool AnswerRun::step(const std::function<bool(std::string_view)>& write) {
  while (pending_.empty() && !ended_) {
    auto more = pull();
    if (!more) StreamedAnswer::append_error(failed(std::move(more.error())), pending_);
    ended_ = !more || !*more;
  }
  bool client_there = write(pending_);
  pending_.clear();
  if (!client_there) cancel();
  return client_there && !ended_;
}

}  // namespace tie::client
