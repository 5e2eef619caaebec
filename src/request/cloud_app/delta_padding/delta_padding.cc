#include "request/cloud_app/delta_padding/delta_padding.h"

#include "base/byte_buckets.h"

namespace tie::request {
namespace {

constexpr size_t kPrefixBytes = 4;
constexpr uint8_t kFillerTag[] = {0xc2, 0x3e};  // field 1000, length-delimited

void append_varint(Bytes& out, size_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<uint8_t>(value | 0x80));
  out.push_back(static_cast<uint8_t>(value));
}

}  // namespace

Bytes pad_message(std::string_view serialized) {
  size_t unpadded = kPrefixBytes + serialized.size();
  std::optional<size_t> filler = filler_content_size(unpadded);
  Bytes out;
  out.reserve(unpadded + (filler ? *filler + 8 : 0));
  append_u32_be(out, 0);
  append(out, serialized);
  if (filler) {
    append(out, ByteView(kFillerTag));
    append_varint(out, *filler);
    out.resize(out.size() + *filler);
  }
  uint32_t size = static_cast<uint32_t>(out.size() - kPrefixBytes);
  for (size_t i = 0; i < kPrefixBytes; ++i) out[i] = static_cast<uint8_t>(size >> (8 * (3 - i)));
  tie_check(is_bucket(out.size()), "a padded message is one bucket");
  return out;
}

}  // namespace tie::request
