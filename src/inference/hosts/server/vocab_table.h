// The engine's view of a vocabulary image.
#pragma once
#include "inference/engine/token_table.h"
#include "text/vocab_image.h"

namespace tie::runtime_host {

// Copies the tokens' text (about a megabyte; control tokens have none). kCorrupt when an end token is outside the
// vocabulary.
Result<engine::TokenTable> token_table(const text::Vocab& vocab);

}  // namespace tie::runtime_host
