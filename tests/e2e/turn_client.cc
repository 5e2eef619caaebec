// A client for the tests of the conversation cache that chooses its own turn keys: reads one request per line as JSON,
// {"messages": [{"role", "content"}], "read": hex, "write": hex, "max_tokens": n}, and prints what came back, with
// times, as one line of JSON. The product's own client draws keys by itself (src/client/turn_keys) and would never send
// a wrong one.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "client/session/session.h"
#include "inference.pb.h"

namespace {

using namespace tie;
using nlohmann::json;

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

v1::InferenceRequest request_of(const json& line, const std::string& model) {
  v1::InferenceRequest request;
  request.set_model(model);
  for (const auto& entry : line.at("messages")) {
    auto* message = request.mutable_conversation()->add_messages();
    message->set_role(entry.at("role").get<std::string>());
    message->add_parts()->set_text(entry.at("content").get<std::string>());
  }
  request.set_turn_key_read(from_hex(line.value("read", "")));
  request.set_turn_key_write(from_hex(line.value("write", "")));
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_tokens(line.value("max_tokens", 16));
  request.mutable_sampling()->set_ignore_eos(line.value("ignore_eos", false));
  return request;
}

json ask(client::Session& session, const v1::InferenceRequest& request) {
  auto answer = session.ask(request, std::make_shared<client::Cancellation>());
  int64_t start_us = monotonic_us(), first_us = 0, last_us = 0;
  json out;
  std::string text;
  for (;;) {
    v1::InferenceEvent event;
    auto got = answer->next(event);
    if (!got) return {{"error", got.error().message}};
    if (!*got) break;
    last_us = monotonic_us() - start_us;
    if (first_us == 0 && !event.text().empty()) first_us = last_us;
    text += event.text();
    if (!event.has_usage()) continue;
    out["prompt"] = event.usage().prompt_tokens();
    out["completion"] = event.usage().completion_tokens();
    out["cached"] = event.usage().cached_tokens();
  }
  out["text"] = text;
  out["first_ms"] = static_cast<double>(first_us) / 1000;
  out["last_event_ms"] = static_cast<double>(last_us) / 1000;
  out["end_ms"] = static_cast<double>(monotonic_us() - start_us) / 1000;
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  client::SessionOptions options;
  std::string model = "smollm2-135m-instruct";
  CLI::App app("Asks a node with turn keys of the caller's choice; JSON lines in, JSON lines out.");
  app.add_option("--node", options.node)->required();
  app.add_option("--policy", options.policy_path);
  app.add_option("--model", model);
  app.add_option("--credential", options.credential);
  CLI11_PARSE(app, argc, argv);
  std::string dek;  // of the last attempt, for tests that look for it on the node afterwards
  options.dek_witness = [&](ByteView key) { dek = to_hex(key); };
  auto session = client::Session::open(options);
  if (!session) {
    fmt::print(stderr, "turn_client: {}\n", session.error().message);
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    auto parsed = json::parse(line, nullptr, false);
    if (parsed.is_discarded()) return 2;
    json answer = ask(**session, request_of(parsed, model));
    answer["dek"] = dek;
    fmt::print("{}\n", answer.dump());
    std::fflush(stdout);
  }
  return 0;
}
