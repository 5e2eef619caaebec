// One answer in the terminal: streams it to standard output, lets Ctrl-C cancel it, says how it ended. Used by `tie
// ask` and `tie chat`.
#pragma once
#include <string>

#include "client/cli/interrupts.h"
#include "client/session/session.h"
#include "inference.pb.h"

namespace tie::cli {

struct TerminalAnswer {
  std::string text;
  std::string finish_reason;
  v1::Usage usage;
  int64_t first_token_ms = 0, total_ms = 0;
  bool cut = false;
  Error error{Code::kOk, {}};  // kOk: complete
};

// `print`: show the text as it comes (else only collect it).
TerminalAnswer answer_in_terminal(client::Session& session, const v1::InferenceRequest& request, Interrupts& interrupts,
                                  bool print);
void print_stats(const TerminalAnswer& answer);
// How much of the prompt the node did not have to compute again.
void print_cache_use(const TerminalAnswer& answer);

}  // namespace tie::cli
