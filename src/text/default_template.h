// The chat template of a model that brings none. Used by prompt.cc only.
#pragma once
#include <string_view>

#include "text/vocab_image.h"

namespace tie::text {

// ChatML, Gemma's or Llama 3's turns, whichever the vocabulary has tokens for; else plain lines "role: text".
std::string_view default_template(const Vocab& vocab);

}  // namespace tie::text
