#include "keys/workload_servicesd/ticket_book.h"

#include "keys/workload_servicesd/limits.h"

namespace tie::wsd {

TicketBook::TicketBook(int64_t ttl_ms, size_t capacity)
    : ttl_ms_(ttl_ms), capacity_(capacity != 0 ? capacity : kMaxTickets) {}

Result<void> TicketBook::enter(ByteView ticket, const Ticket& what, int64_t now_ms) {
  if (ticket.size() != kTicketBytes) return fail(Code::kBadRequest, "a ticket has 32 bytes");
  const crypto::Digest name = crypto::sha256(ticket);
  std::lock_guard lock(mutex_);
  drop_expired(now_ms);
  if (entries_.size() >= capacity_) return fail(Code::kOverloaded, "too many tickets wait to be used");
  if (!entries_.try_emplace(name, Entry{what, now_ms + ttl_ms_}).second)
    return fail(Code::kAlreadyExists, "this ticket is registered already");
  by_expiry_.emplace_back(now_ms + ttl_ms_, name);
  return {};
}

std::optional<Ticket> TicketBook::present(ByteView ticket, int64_t now_ms) {
  const crypto::Digest name = crypto::sha256(ticket);
  std::lock_guard lock(mutex_);
  drop_expired(now_ms);
  auto at = entries_.find(name);
  if (at == entries_.end()) return std::nullopt;
  const Ticket out = at->second.ticket;
  entries_.erase(at);
  return out;
}

void TicketBook::clear() {
  std::lock_guard lock(mutex_);
  entries_.clear();
  by_expiry_.clear();
}

size_t TicketBook::size() {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

// Tickets expire in the order of their registration. A used ticket's row is dropped here too, so the queue is bounded
// by what was registered within one lifetime of a ticket.
void TicketBook::drop_expired(int64_t now_ms) {
  while (!by_expiry_.empty() && by_expiry_.front().first <= now_ms) {
    auto at = entries_.find(by_expiry_.front().second);
    if (at != entries_.end() && at->second.expires_at_ms <= now_ms) entries_.erase(at);
    by_expiry_.pop_front();
  }
}

}  // namespace tie::wsd
