// Starts libcrypto for a program that lives for one request: no configuration file, no handler at exit, no tables of
// the names and error texts that nothing here looks up. Algorithms come from the default provider as they are used,
// under its own names. Called first thing in main; half of what libcrypto's start costs such a process (0.6 ms) is
// saved. Programs that read keys from files or ask for algorithms by legacy names must not call it.
#pragma once

namespace tie::crypto {

void start_library_for_one_request();

}  // namespace tie::crypto
