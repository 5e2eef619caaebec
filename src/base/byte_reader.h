// Reads big-endian numbers and sized fields one after the other; past the end everything fails, so that a parser may
// ask once, at its end. A view: the bytes must outlive it and what it gave. One thread.
#pragma once
#include "base/bytes.h"

namespace tie {

class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : left_(bytes) {}
  uint64_t number(size_t size) {  // of at most 8 bytes
    uint64_t out = 0;
    for (const uint8_t byte : take(size)) out = out << 8 | byte;
    return out;
  }
  ByteView sized(size_t size_bytes) { return take(number(size_bytes)); }  // its size stands before it
  ByteView take(size_t size) {
    if (!ok_ || size > left_.size()) {
      ok_ = false;
      return {};
    }
    const ByteView out = left_.first(size);
    left_ = left_.subspan(size);
    return out;
  }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && left_.empty(); }

 private:
  ByteView left_;
  bool ok_ = true;
};

}  // namespace tie
