// Random bytes from the kernel (getrandom). Never a user-space generator: a forked or frozen process cannot repeat
// them.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "base/secret_bytes.h"

namespace tie {

void random_bytes(std::span<uint8_t> out);  // aborts if the kernel cannot give them
SecretBytes random_secret(size_t size);
uint64_t random_u64();
std::string random_hex(size_t byte_count);  // an unguessable printable id

}  // namespace tie
