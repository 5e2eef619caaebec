#include "base/random.h"

#include <errno.h>
#include <sys/random.h>

namespace tie {

void random_bytes(std::span<uint8_t> out) {
  size_t done = 0;
  while (done < out.size()) {
    ssize_t got = getrandom(out.data() + done, out.size() - done, 0);
    if (got < 0 && errno == EINTR) continue;
    tie_check(got > 0, "getrandom gives bytes");
    done += static_cast<size_t>(got);
  }
}

SecretBytes random_secret(size_t size) {
  SecretBytes out(size);
  random_bytes(out.span());
  return out;
}

uint64_t random_u64() {
  uint8_t raw[8];
  random_bytes(raw);
  return load_u64_be(raw);
}

std::string random_hex(size_t byte_count) {
  Bytes raw(byte_count);
  random_bytes(raw);
  return to_hex(raw);
}

}  // namespace tie
