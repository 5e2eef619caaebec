#include "request/cloudboardd/key_board.h"

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "os/log.h"
#include "request/cloudboardd/limits.h"

namespace tie::request::cloudboard {
namespace {

Result<void> check_request(const v1::PublishKeysRequest& request) {
  bool too_many = static_cast<size_t>(request.bundles_size()) > kMaxKeys ||
                  static_cast<size_t>(request.accepted_key_ids_size()) > kMaxKeys ||
                  static_cast<size_t>(request.revoked_key_ids_size()) > 16 * kMaxKeys;
  if (too_many) return fail(Code::kTooLarge, "more keys than this daemon holds");
  auto wrong = [](const std::string& id) { return id.size() != kKeyIdBytes; };
  bool malformed = std::any_of(request.accepted_key_ids().begin(), request.accepted_key_ids().end(), wrong) ||
                   std::any_of(request.revoked_key_ids().begin(), request.revoked_key_ids().end(), wrong) ||
                   std::any_of(request.bundles().begin(), request.bundles().end(),
                               [&](const auto& bundle) { return wrong(bundle.key_id()); });
  if (malformed) return fail(Code::kBadRequest, "a key id is 32 bytes");
  return {};
}

}  // namespace

Result<std::vector<std::string>> KeyBoard::publish(const v1::PublishKeysRequest& request) {
  TIE_CHECK_OK(check_request(request));
  std::set<std::string> revoked(request.revoked_key_ids().begin(), request.revoked_key_ids().end());
  std::set<std::string> in_use_before(request.used_key_ids().begin(), request.used_key_ids().end());
  std::map<std::string, Key> accepted;
  std::vector<std::string> unrestorable;
  for (const std::string& id : request.accepted_key_ids()) {
    if (revoked.contains(id)) continue;
    auto opened = guard_.open_key(as_bytes(id), !in_use_before.contains(id));
    if (!opened) {
      TIE_LOG("cloudboardd", "a key's replay record cannot be restored: {}", opened.error().code);
      unrestorable.push_back(id);
      continue;
    }
    auto known = accepted_.find(id);
    accepted.emplace(id, known != accepted_.end() ? known->second : Key{});
  }
  for (const auto& bundle : request.bundles()) {
    auto found = accepted.find(bundle.key_id());
    if (found == accepted.end()) continue;
    found->second.facts.token_required = bundle.token_required();
    found->second.expires_unix_ms = bundle.kem().expires_unix_ms();
  }
  for (const auto& [id, key] : accepted_)
    if (!accepted.contains(id) && std::find(unrestorable.begin(), unrestorable.end(), id) == unrestorable.end())
      guard_.close_key(as_bytes(id));
  accepted_ = std::move(accepted);
  published_.Clear();
  for (const auto& bundle : request.bundles())
    if (accepted_.contains(bundle.key_id())) *published_.add_bundles() = bundle;
  *published_.mutable_revoked_key_ids() = request.revoked_key_ids();
  for (const std::string& id : unrestorable) published_.add_revoked_key_ids(id);
  return unrestorable;
}

Result<KeyBoard::KeyFacts> KeyBoard::check(ByteView key_id) const {
  auto found = accepted_.find(to_string(key_id));
  bool known = found != accepted_.end() && !guard_.lost(key_id);
  bool expired = known && found->second.expires_unix_ms != 0 &&
                 wall_clock_ms() > static_cast<int64_t>(found->second.expires_unix_ms) + kKeyGraceMs;
  if (!known || expired) return fail(Code::kKeyUnknownOrExpired, error_info(Code::kKeyUnknownOrExpired).sentence);
  return found->second.facts;
}

}  // namespace tie::request::cloudboard
