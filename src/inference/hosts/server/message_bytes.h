// Protobuf messages to and from gRPC's byte buffers.
#pragma once
#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

namespace tie::runtime_host {

// Parses one message and overwrites its bytes: gRPC owns the memory, and nobody else reads it any more. False when it
// does not parse.
bool parse_and_wipe(grpc::ByteBuffer& buffer, google::protobuf::MessageLite& message);

// One serialization, no copy.
grpc::ByteBuffer to_byte_buffer(const google::protobuf::MessageLite& message);

}  // namespace tie::runtime_host
