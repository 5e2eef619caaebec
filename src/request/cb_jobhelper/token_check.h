// The verifier of a node with one-time tokens on: the token must open this node (keys/tokens/token_gate.h, judged in
// this process) and token_spentd must not have seen it. One call, which waits for token_spentd at most kTokenTimeoutMs.
// Source: ARCHITECTURE.md, "One-time tokens".
#pragma once
#include "keys/tokens/token_gate.h"
#include "request/cb_jobhelper/session.h"

namespace tie::request::jobhelper {

// `spend_socket` must stay open as long as the verifier is used.
TokenVerifier token_check(tokens::TokenGate gate, int spend_socket);

}  // namespace tie::request::jobhelper
