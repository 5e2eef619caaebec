#include "client/cli/terminal_answer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/clock.h"
#include "client/cli/terminal_text.h"

namespace tie::cli {

TerminalAnswer answer_in_terminal(client::Session& session, const v1::InferenceRequest& request, Interrupts& interrupts,
                                  bool print) {
  auto cancel = std::make_shared<client::Cancellation>();
  Interrupts::Scope stop(interrupts, [cancel] { cancel->cancel(); });
  bool terminal = ::isatty(STDOUT_FILENO);
  TerminalAnswer out;
  int64_t began_ms = monotonic_ms();
  auto answer = session.ask(request, cancel);
  v1::InferenceEvent event;
  for (;;) {
    auto got = answer->next(event);
    if (!got) {
      out.error = got.error();
      out.cut = answer->was_cut();
      break;
    }
    if (!*got) break;
    if (out.text.empty() && !event.text().empty()) out.first_token_ms = monotonic_ms() - began_ms;
    out.text += event.text();
    if (print && !event.text().empty()) {
      std::string shown = terminal ? for_terminal(event.text()) : event.text();
      std::fwrite(shown.data(), 1, shown.size(), stdout);
      std::fflush(stdout);
    }
    if (!event.finish_reason().empty()) out.finish_reason = event.finish_reason();
    if (event.has_usage()) out.usage = event.usage();
  }
  out.total_ms = monotonic_ms() - began_ms;
  return out;
}

void print_stats(const TerminalAnswer& answer) {
  double after_first_s = double(answer.total_ms - answer.first_token_ms) / 1000;
  uint32_t tokens = answer.usage.completion_tokens();
  double rate = after_first_s > 0 && tokens > 1 ? (tokens - 1) / after_first_s : 0;
  fmt::print(stderr, "[{} prompt + {} answer tokens, {} from cache; first after {} ms, {:.1f} tokens/s; ended by {}]\n",
             answer.usage.prompt_tokens(), tokens, answer.usage.cached_tokens(), answer.first_token_ms, rate,
             answer.finish_reason.empty() ? "nothing" : answer.finish_reason);
}

void print_cache_use(const TerminalAnswer& answer) {
  fmt::print(stderr, "[from the cache: {} of {} prompt tokens]\n", answer.usage.cached_tokens(),
             answer.usage.prompt_tokens());
}

}  // namespace tie::cli
