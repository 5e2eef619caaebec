// Starts libcrypto for a program that lives for one request: no configuration file, no handler at exit, no tables of
// the names and error texts that nothing here looks up, and of the default provider's algorithms only those that a
// request takes: AES-256-GCM, SHA-256, SHA-384, HMAC, RSA. Any other is not found, whoever asks. Called first thing in
// main; 1.2 ms of CPU time is saved. A program that links libcrypto as a shared library (sanitizer builds) has all
// algorithms. Programs that read keys from files or ask for algorithms by legacy names must not call it.
#pragma once

namespace tie::crypto {

void start_library_for_one_request();

}  // namespace tie::crypto
