#include "keys/workload_servicesd/operator_face.h"

#include <sys/socket.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "os/unix_socket.h"

namespace tie::wsd {
namespace {

using nlohmann::json;

HttpReply error(int status, const std::string& sentence) {
  return {status, json{{"error", sentence}}.dump(-1, ' ', false, json::error_handler_t::replace) + "\n"};
}

HttpReply said(const json& value) {
  return {200, value.dump() + "\n"};
}

const char* name_of(crypto::KemId kem) {
  return kem == crypto::KemId::kXWing ? "xwing" : "x25519";
}

// A string field of a JSON object; empty when there is none.
std::string text_field(const std::string& body, const char* field) {
  const json parsed = json::parse(body, nullptr, false);
  if (!parsed.is_object()) return {};
  const auto found = parsed.find(field);
  return found != parsed.end() && found->is_string() ? found->get<std::string>() : std::string();
}

json describe(const RequestKey& key, bool published) {
  json models = json::array();
  for (const crypto::Digest& id : key.claims.model_ids) models.push_back(to_hex(id));
  return {{"key_id", to_hex(key.id)}, {"suite", name_of(key.kem)},
          {"key_uuid", key.uuid},     {"expires_unix_ms", key.claims.expires_unix_ms},
          {"published", published},   {"model_ids", models}};
}

}  // namespace

HttpReply OperatorFace::answer(const HttpRequest& request, bool may_act) {
  const bool get = request.method == "GET", post = request.method == "POST";
  if (request.path == "/authorize" || request.path == "/decap")
    return error(403, "answered on its own socket only, to its own peer");
  if (get && request.path == "/capabilities") return capabilities();
  if (get && request.path == "/keys") return keys();
  const bool acts = request.path == "/generate_key" || request.path == "/destroy";
  if (!acts && request.path != "/capabilities" && request.path != "/keys") return error(404, "there is nothing here");
  if (!acts || !post) return error(400, "wrong method");
  if (!may_act) return error(401, "this user may look, not act");
  return request.path == "/destroy" ? destroy(request.body) : generate_key(request.body);
}

HttpReply OperatorFace::capabilities() const {
  json suites = json::array();
  for (const crypto::KemId kem : facts_.suites) suites.push_back(name_of(kem));
  return said({{"version", 1},
               {"suites", suites},
               {"evidence_kind", facts_.evidence_kind},
               {"hidden_memory", facts_.hidden_memory},
               {"key_lifetime_ms", facts_.key_lifetime_ms},
               {"key_grace_ms", facts_.key_grace_ms},
               {"max_keys", kMaxKeys}});
}

HttpReply OperatorFace::keys() {
  const int64_t now = monotonic_ms();
  const KeyRing::Snapshot all = ring_.snapshot(now);
  json out = json::array();
  for (const crypto::Digest& id : all.accepted) {
    const auto key = ring_.find(id, now);
    if (!key) continue;  // died meanwhile
    const bool published =
        std::any_of(all.published.begin(), all.published.end(), [&](const auto& k) { return k->id == id; });
    out.push_back(describe(**key, published));
  }
  return said({{"keys", out}});
}

HttpReply OperatorFace::generate_key(const std::string& body) {
  const std::string suite = text_field(body, "suite");
  const auto wanted = std::find_if(facts_.suites.begin(), facts_.suites.end(),
                                   [&](crypto::KemId kem) { return suite == name_of(kem); });
  if (wanted == facts_.suites.end()) return error(400, "suite must be one of this node's capabilities");
  if (ring_.size() >= kMaxKeys) return error(409, "as many keys live as may; destroy one, or wait for one to expire");
  const auto before = ring_.newest(*wanted, monotonic_ms());
  actions_.rotate(*wanted);
  const Deadline deadline = Deadline::in_ms(facts_.generate_wait_ms);
  while (!deadline.passed()) {
    const uint64_t version = ring_.version();
    const auto newest = ring_.newest(*wanted, monotonic_ms());
    if (newest && (!before || newest->id != before->id)) return said(describe(*newest, true));
    ring_.wait_changed(version, std::min<int64_t>(deadline.remaining_ms(), kLinkPollMs));
  }
  return error(500, "no key was made in time; it is tried again");
}

HttpReply OperatorFace::destroy(const std::string& body) {
  const auto bytes = from_hex(text_field(body, "key_id"));
  const auto id = bytes ? crypto::digest_from(*bytes, "a key id") : fail(Code::kBadRequest, "");
  if (!id) return error(400, "key_id must be 64 hex digits");
  if (!ring_.find(*id, monotonic_ms())) return error(404, "no living key has this id");
  actions_.revoke(*id);
  return said({{"destroyed", to_hex(*id)}});
}

bool serve_operator(OperatorFace& face, std::optional<uint32_t> operator_uid, int socket) {
  const Deadline deadline = Deadline::in_ms(kFrameDeadlineMs);
  const auto peer = os::peer_credentials(socket);
  const bool may_act = peer && (!operator_uid || peer->uid == 0 || peer->uid == *operator_uid);
  std::string bytes;
  Result<std::optional<HttpRequest>> request = std::nullopt;
  while (request && !*request) {
    char piece[1024];
    if (!os::wait_readable(socket, deadline)) return false;
    const ssize_t size = ::recv(socket, piece, sizeof piece, MSG_DONTWAIT);
    if (size <= 0) return false;
    bytes.append(piece, static_cast<size_t>(size));
    request = parse_http(bytes);
  }
  const HttpReply reply = request ? face.answer(**request, may_act) : error(400, request.error().message);
  (void)os::write_all(socket, as_bytes(render(reply)), Deadline::in_ms(kFrameDeadlineMs));
  return false;
}

}  // namespace tie::wsd
