// Hostile request chunks and responses: never a crash, and nothing opens that was not sealed.
#include "crypto/request_open.h"
#include "crypto/request_seal.h"

using namespace tie;

// Input: a length byte and a flag byte before each chunk. A good first chunk goes in front when the first byte is odd.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Bytes dek(32, 1), key_id(32, 2), parameters = to_bytes("p");
  auto open = crypto::ChunkOpener::create(dek, key_id, parameters, 4096);
  tie_check(open.has_value(), "constant keys make an opener");
  size_t at = 0;
  if (size != 0 && (data[at++] & 1) != 0) {
    auto seal = crypto::ChunkSealer::create(dek, key_id, parameters);
    tie_check(open->open(*seal->seal(as_bytes("good"), false), false).has_value(), "an honest chunk opens");
  }
  while (at + 2 <= size) {
    const size_t length = std::min<size_t>(data[at], size - at - 2);
    auto plaintext = open->open(ByteView(data + at + 2, length), (data[at + 1] & 1) != 0);
    tie_check(!plaintext.has_value(), "nobody forges a chunk");
    at += 2 + length;
  }
  tie_check(!open->end_of_stream().has_value(), "a stream without an honest end is cut");
  (void)crypto::OpenedRequest::open(crypto::kSuiteXWing, key_id, ByteView(data, size), dek,
                                    ByteView(data, std::min<size_t>(size, 48)));
  return 0;
}
