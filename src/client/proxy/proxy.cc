#include "client/proxy/proxy.h"

#include "base/clock.h"
#include "base/random.h"
#include "client/proxy/answer_run.h"
#include "client/proxy/json_text.h"

namespace tie::client {
namespace {

constexpr int64_t kModelsMaxAgeMs = 2'000;  // of the bundle behind /v1/models and /healthz
constexpr std::string_view kModelsPath = "/v1/models";
constexpr const char* kWelcome =
    "This is the local proxy of a TIE node. It speaks OpenAI's API: point a client's base URL at /v1 of this address.\n"
    "  GET  /v1/models\n  POST /v1/chat/completions\n  POST /v1/completions\n  GET  /healthz\n";

void give_error(const ApiError& error, HttpReply& reply) {
  reply.status = http_status_of(error);
  reply.body = error_json(error);
  reply.headers.emplace_back("x-tie-error", error_info(error.code).name);
  if (reply.status == 429 || reply.status == 503) reply.headers.emplace_back("Retry-After", "1");
}

void append_model(std::string& out, const ServedModel& model, int64_t created) {
  out += R"({"id":)";
  append_json_string(out, model.name);
  out += R"(,"object":"model","created":)" + std::to_string(created) + R"(,"owned_by":"tie","max_model_len":)" +
         std::to_string(model.context_tokens);
  out += R"(,"architecture":)";
  append_json_string(out, model.architecture);
  out += R"(,"model_id":)";
  append_json_string(out, model.model_id_hex);
  out += '}';
}

// x-tie-cache: off keeps a request out of every cache; `on` and no header leave it to the body and the proxy.
std::optional<ApiError> read_cache_header(const HttpRequest& request, OpenAiRequest& out) {
  std::string value = request.header("x-tie-cache");
  if (value == "off") out.cache = false;
  if (value.empty() || value == "on" || value == "off") return std::nullopt;
  return ApiError{Code::kBadRequest, "The header x-tie-cache must be on or off.", "x-tie-cache", "invalid_value", 0};
}

ApiError unknown_model(const std::string& name, const VerifiedNode& node) {
  std::string served;
  for (const ServedModel& model : node.models) served += (served.empty() ? "" : ", ") + model.name;
  return {Code::kModelNotFound,
          "The model '" + name.substr(0, 200) +
              "' does not exist on this node. It serves: " + (served.empty() ? "none" : served) + ".",
          "model",
          {},
          0};
}

}  // namespace

Proxy::Proxy(std::shared_ptr<Session> session, HostGuard guard, std::shared_ptr<TurnKeyTable> turn_keys)
    : session_(std::move(session)),
      guard_(std::move(guard)),
      turn_keys_(std::move(turn_keys)),
      started_unix_s_(wall_clock_ms() / 1000) {}

void Proxy::add_headers(HttpReply& reply) const {
  auto node = session_->last_node();
  reply.headers.emplace_back("x-tie-verification", node ? node->summary() : "none");
  reply.headers.emplace_back("x-request-id", "req_" + random_hex(12));
}

void Proxy::refuse(int status, const std::string& sentence, HttpReply& reply) const {
  ApiError error{Code::kBadRequest, sentence, {}, "bad_request", status};
  if (status == 413) error = {Code::kTooLarge, "The body is larger than this proxy takes (10 MiB).", {}, {}, 413};
  if (status == 404) error.openai_code = "unknown_url";
  if (status >= 500) error.openai_code = status == 503 ? "overloaded" : "internal";
  if (error.message.empty())
    error.message = status == 404 ? "There is nothing at this address." : "The request is not valid HTTP.";
  give_error(error, reply);
  add_headers(reply);
}

void Proxy::handle(const HttpRequest& request, HttpReply& reply) {
  if (auto refusal = guard_.refusal(request)) {
    give_error(*refusal, reply);
  } else {
    route(request, reply);
  }
  add_headers(reply);
}

Proxy::Address Proxy::address_of(std::string_view path) {
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const Place place = path == "/"                       ? Place::kWelcome
                      : path == "/healthz"              ? Place::kHealth
                      : path == "/v1/chat/completions"  ? Place::kChat
                      : path == "/v1/completions"       ? Place::kCompletions
                      : path == kModelsPath             ? Place::kModels
                      : path.starts_with("/v1/models/") ? Place::kModel
                                                        : Place::kNone;
  return {place, path};
}

bool Proxy::exists(std::string_view path) {
  return address_of(path).place != Place::kNone;
}

void Proxy::route(const HttpRequest& request, HttpReply& reply) {
  const bool get = request.method == "GET" || request.method == "HEAD";
  const auto [place, path] = address_of(request.path);
  const bool answers = place == Place::kChat || place == Place::kCompletions;
  if (answers && request.method == "POST") return answer(place == Place::kChat, request, reply);
  if (place == Place::kModels && get) return list_models(reply);
  if (place == Place::kModel && get) return show_model(std::string(path.substr(kModelsPath.size() + 1)), reply);
  if (place == Place::kHealth && get) return health(reply);
  if (place == Place::kWelcome && get) {
    reply.content_type = "text/plain; charset=utf-8";
    reply.body = kWelcome;
    return;
  }
  std::string shown(path.substr(0, 200));
  if (place != Place::kNone && place != Place::kWelcome) {
    reply.headers.emplace_back("Allow", answers ? "POST" : "GET");
    return give_error(
        {Code::kBadRequest, request.method + " is not allowed on " + shown + ".", {}, "method_not_allowed", 405},
        reply);
  }
  give_error({Code::kNotFound,
              "Invalid URL (" + request.method + " " + shown +
                  "): this node has /v1/models, /v1/chat/completions and /v1/completions.",
              {},
              "unknown_url",
              404},
             reply);
}

std::optional<ApiError> Proxy::check_model(const std::string& name) {
  auto node = session_->node();
  if (node && !(*node)->find_model(name)) node = session_->node(kModelsMaxAgeMs);  // perhaps it was added a moment ago
  if (!node || (*node)->find_model(name))
    return std::nullopt;  // a node that cannot be reached is reported by the attempt, after its retries
  return unknown_model(name, **node);
}

void Proxy::answer(bool chat, const HttpRequest& request, HttpReply& reply) {
  auto read = read_openai_request(chat ? Endpoint::kChat : Endpoint::kCompletions, request.body);
  if (!read) return give_error(read.error(), reply);
  if (auto error = read_cache_header(request, *read)) return give_error(*error, reply);
  if (auto error = check_model(read->model)) return give_error(*error, reply);
  for (auto& payload : read->payloads) payload.set_prompt_id(request.header("x-tie-prompt-id"));

  bool stream = read->stream;
  auto run = std::make_shared<AnswerRun>(session_, std::move(*read), turn_keys_.get(),
                                         as_bytes(request.header("Authorization")));
  auto watch = request.watch_client([run = run.get()] { run->cancel(); });
  // The watch must end before the run does.
  reply.keep = std::make_shared<std::pair<std::shared_ptr<AnswerRun>, std::shared_ptr<void>>>(run, std::move(watch));
  if (!stream) {
    auto whole = run->whole();
    if (!whole) return give_error(whole.error(), reply);
    reply.body = std::move(*whole);
    return;
  }
  if (auto error = run->begin()) return give_error(*error, reply);
  reply.content_type = "text/event-stream; charset=utf-8";
  reply.headers.emplace_back("Cache-Control", "no-cache");
  reply.stream = [run](const std::function<bool(std::string_view)>& write) { return run->step(write); };
}

void Proxy::list_models(HttpReply& reply) {
  auto node = session_->node(kModelsMaxAgeMs);
  if (!node) return give_error(api_error(node.error()), reply);
  reply.body = R"({"object":"list","data":[)";
  for (size_t i = 0; i < (*node)->models.size(); ++i) {
    if (i > 0) reply.body += ',';
    append_model(reply.body, (*node)->models[i], started_unix_s_);
  }
  reply.body += "]}";
}

void Proxy::show_model(const std::string& name, HttpReply& reply) {
  auto node = session_->node(kModelsMaxAgeMs);
  if (!node) return give_error(api_error(node.error()), reply);
  const ServedModel* model = (*node)->find_model(name);
  if (!model) return give_error(unknown_model(name, **node), reply);
  append_model(reply.body, *model, started_unix_s_);
}

void Proxy::health(HttpReply& reply) {
  auto node = session_->node(kModelsMaxAgeMs);
  if (!node) return give_error(api_error(node.error()), reply);
  reply.body = R"({"status":"ok","verification":)";
  append_json_string(reply.body, (*node)->summary());
  reply.body += "}";
}

Result<std::unique_ptr<RunningProxy>> RunningProxy::start(std::shared_ptr<Session> session, ProxyOptions options) {
  auto running = std::make_unique<RunningProxy>();
  options.http.exists = &Proxy::exists;
  HostGuard guard{options.http.port, options.api_key, {}};
  if (options.http.host != "127.0.0.1" && options.http.host != "0.0.0.0") guard.extra_host = options.http.host;
  if (options.http.port == 0) return fail(Code::kBadRequest, "the proxy needs a port");
  running->proxy_ = std::make_unique<Proxy>(std::move(session), std::move(guard), std::move(options.turn_keys));
  Proxy* proxy = running->proxy_.get();
  TIE_TRY(running->server_,
          HttpServer::start(
              options.http, [proxy](const HttpRequest& request, HttpReply& reply) { proxy->handle(request, reply); },
              [proxy](int status, const std::string& sentence, HttpReply& reply) {
                proxy->refuse(status, sentence, reply);
              }));
  return running;
}

}  // namespace tie::client
