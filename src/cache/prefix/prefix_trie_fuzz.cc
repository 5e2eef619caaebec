// Metadata of a pool as another process might send it: whatever passes check() must build a trie that matches its own
// prompts.
#include <cstdlib>

#include "cache/prefix/prefix_trie.h"
#include "owner.pb.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  v1::PrefixTrie message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return 0;
  auto metadata = prefix::from_proto(message);
  if (!metadata || !prefix::check(*metadata)) return 0;
  (void)prefix::trie_digest(*metadata);
  prefix::PrefixTrie trie(*metadata);
  for (prefix::PromptEntry& prompt : metadata->prompts) {
    prompt.tokens.push_back(-1);
    if (trie.match(prompt.tokens) != prompt.blocks) std::abort();
  }
  return 0;
}
