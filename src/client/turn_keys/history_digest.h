// Names for the histories of a conversation: a keyed digest for each prefix of its messages, so that a table of
// conversations holds no text and cannot be searched for a guessed one without its secret. Private to this folder. Pure
// function. Two histories have the same digest when a model would read the same messages: an assistant's reasoning and
// empty parts do not count. Cost: one SHA-256 pass over the messages.
#pragma once
#include <vector>

#include "crypto/sha256.h"
#include "inference.pb.h"

namespace tie::client {

// Of one message.
crypto::Digest message_digest(const v1::Message& message);
// The digest of a history one message longer.
crypto::Digest extend_history(ByteView secret, const crypto::Digest& history, const crypto::Digest& message);
// [i] is the digest of the first i + 1 messages. `partition` separates those who must not share: what one application
// said is unknown to another.
std::vector<crypto::Digest> history_digests(ByteView secret, ByteView partition, const v1::InferenceRequest& request);

}  // namespace tie::client
