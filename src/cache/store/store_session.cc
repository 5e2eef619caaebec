#include "cache/store/store_session.h"

#include <cstring>

namespace tie::cache {
namespace {

Result<EntryId> entry_id(const std::string& bytes) {
  if (bytes.size() != kEntryIdBytes) return fail(Code::kBadRequest, "an entry id is 32 bytes long");
  EntryId id;
  std::memcpy(id.data(), bytes.data(), id.size());
  return id;
}

}  // namespace

Result<void> StoreSession::bind(const v1::BindPrincipal& request) {
  if (principal_) return fail(Code::kFailedPrecondition, "the principal is stated once");
  if (!request.principal().empty() && request.principal().size() != kPrincipalBytes)
    return fail(Code::kBadRequest, "a principal is 32 bytes long, or empty");
  principal_ = request.principal();
  return {};
}

// An anonymous request may not fill the class it shares with all others.
Result<void> StoreSession::charge(uint64_t bytes) {
  if (!principal_->empty()) return {};
  if (bytes > store_.limits().max_anonymous_bytes_per_connection - anonymous_bytes_)
    return fail(Code::kTooLarge, "this request has stored as much as an anonymous one may");
  anonymous_bytes_ += bytes;
  return {};
}

// Small values travel in the reply; bulk as the sealed descriptor.
Result<StoreAnswer> StoreSession::get(const v1::Get& request, int64_t now_ms) {
  TIE_TRY(EntryId id, entry_id(request.entry_id()));
  TIE_TRY(StoredValue value, store_.get(id, now_ms));
  StoreAnswer out;
  out.reply.set_bytes(value.size);
  if (value.fd < 0) {
    out.reply.set_value(value.bytes.data(), value.bytes.size());
    return out;
  }
  os::Fd borrowed(value.fd);
  auto copy = borrowed.duplicate();
  borrowed.release();
  TIE_TRY(out.memory, std::move(copy));
  return out;
}

StoreAnswer StoreSession::stats() const {
  StoreCounters counters = store_.counters();
  StoreAnswer out;
  out.reply.set_entries(counters.entries);
  out.reply.set_used_bytes(counters.used_bytes);
  out.reply.set_capacity_bytes(store_.limits().capacity_bytes);
  out.reply.set_evictions(counters.evictions);
  out.reply.set_principals(counters.principals);
  return out;
}

Result<StoreAnswer> StoreSession::act(const v1::StoreRequest& request, std::vector<os::Fd>& fds, int64_t now_ms) {
  if (request.kind_case() == v1::StoreRequest::kBind) {
    TIE_CHECK_OK(bind(request.bind()));
    return StoreAnswer{};
  }
  if (!principal_) return fail(Code::kFailedPrecondition, "the principal is stated first");
  switch (request.kind_case()) {
    case v1::StoreRequest::kPut: {
      TIE_TRY(EntryId id, entry_id(request.put().entry_id()));
      if (fds.size() != 1) return fail(Code::kBadRequest, "an entry comes with one descriptor");
      TIE_CHECK_OK(charge(request.put().bytes()));
      TIE_CHECK_OK(
          store_.put(*principal_, id, std::move(fds[0]), request.put().bytes(), request.put().ttl_ms(), now_ms));
      return StoreAnswer{};
    }
    case v1::StoreRequest::kGet:
      return get(request.get(), now_ms);
    case v1::StoreRequest::kDelete: {
      TIE_TRY(EntryId id, entry_id(request.delete_().entry_id()));
      store_.remove(id);
      return StoreAnswer{};
    }
    case v1::StoreRequest::kSwap: {
      const v1::CompareAndSwap& swap = request.swap();
      TIE_TRY(EntryId id, entry_id(swap.entry_id()));
      TIE_CHECK_OK(charge(swap.value().size()));
      TIE_CHECK_OK(store_.compare_and_swap(*principal_, id, as_bytes(swap.expected_sha256()), as_bytes(swap.value()),
                                           swap.ttl_ms(), now_ms));
      return StoreAnswer{};
    }
    case v1::StoreRequest::kStats:
      return stats();
    default:
      return fail(Code::kUnsupportedFeature, "this store does not know that request");
  }
}

}  // namespace tie::cache
