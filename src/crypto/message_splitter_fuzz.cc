// Any bytes cut anywhere: the splitter gives the same messages as a plain loop over the whole stream, and the same
// verdict at the end.
#include "crypto/message_splitter.h"

using namespace tie;

namespace {

constexpr size_t kLimit = 64;

struct Expected {
  std::vector<Bytes> messages;
  bool whole = false;
};

Expected read_plainly(ByteView stream) {
  Expected out;
  while (stream.size() >= 4) {
    const size_t length = load_u32_be(stream.data());
    if (length > kLimit || length > stream.size() - 4) return out;
    out.messages.emplace_back(stream.begin() + 4, stream.begin() + 4 + static_cast<ptrdiff_t>(length));
    stream = stream.subspan(4 + length);
  }
  out.whole = stream.empty();
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t step = data[0] % 32 + 1;
  const ByteView stream(data + 1, size - 1);
  const Expected expected = read_plainly(stream);
  crypto::MessageSplitter splitter(kLimit);
  std::vector<Bytes> got;
  for (size_t at = 0; at < stream.size(); at += step) {
    if (!splitter.feed(stream.subspan(at, std::min(step, stream.size() - at)))) break;
    while (auto message = splitter.next()) got.push_back(std::move(*message));
  }
  tie_check(got == expected.messages, "the cuts do not matter");
  tie_check(splitter.finish().has_value() == expected.whole, "only a whole stream ends well");
  return 0;
}
