// The messages that an application will send back when it continues an answer: text and tool calls of each sample, put
// together from the node's events. One thread. Holds the answer's text until destroyed. Limits: beyond 64 MiB or 256
// calls it gives up and knows no messages, which costs the next turn its cache and nothing else.
#pragma once
#include <span>
#include <vector>

#include "inference.pb.h"

namespace tie::client {

class AnswerMessages {
 public:
  explicit AnswerMessages(int samples);
  void add(const v1::InferenceEvent& event);
  std::span<const v1::Message> messages() const { return messages_; }

 private:
  std::vector<v1::Message> messages_;
  size_t bytes_ = 0;
};

}  // namespace tie::client
