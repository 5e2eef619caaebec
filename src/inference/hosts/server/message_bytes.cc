#include "inference/hosts/server/message_bytes.h"

#include <vector>

#include "base/secret_bytes.h"

namespace tie::runtime_host {

bool parse_and_wipe(grpc::ByteBuffer& buffer, google::protobuf::MessageLite& message) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return false;
  bool parsed = false;
  if (slices.size() == 1) {
    parsed = message.ParseFromArray(slices[0].begin(), static_cast<int>(slices[0].size()));
  } else {
    std::string whole;
    whole.reserve(buffer.Length());
    for (const auto& s : slices) whole.append(reinterpret_cast<const char*>(s.begin()), s.size());
    parsed = message.ParseFromString(whole);
    secure_zero(whole);
  }
  for (const auto& s : slices) secure_zero(const_cast<uint8_t*>(s.begin()), s.size());
  buffer.Clear();
  return parsed;
}

grpc::ByteBuffer to_byte_buffer(const google::protobuf::MessageLite& message) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace tie::runtime_host
