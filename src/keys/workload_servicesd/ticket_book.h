// Tickets: cloudboardd's word, given in advance, that one encapsulated key may be decapsulated once. A ticket leaves
// the book when it is presented, whatever comes of it, and by itself after kTicketTtlMs. Threads: any. Limits:
// kMaxTickets. Source: ARCHITECTURE.md, "One ticket, one decapsulation".
#pragma once
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "crypto/sha256.h"

namespace tie::wsd {

struct Ticket {
  crypto::Digest key_id{}, enc_sha256{};
};

class TicketBook {
 public:
  explicit TicketBook(int64_t ttl_ms, size_t capacity = 0);  // 0: kMaxTickets
  // kBadRequest (length), kAlreadyExists (the same ticket twice), kOverloaded (book full).
  Result<void> enter(ByteView ticket, const Ticket& what, int64_t now_ms);
  // Takes the ticket out; nullopt when it is unknown, used or expired.
  std::optional<Ticket> present(ByteView ticket, int64_t now_ms);
  void clear();
  size_t size();

 private:
  struct Entry {
    Ticket ticket;
    int64_t expires_at_ms;
  };
  void drop_expired(int64_t now_ms);
  const int64_t ttl_ms_;
  const size_t capacity_;
  std::mutex mutex_;
  // By the ticket's digest: a guess at a ticket learns nothing from how long the look-up takes.
  std::map<crypto::Digest, Entry> entries_;
  std::deque<std::pair<int64_t, crypto::Digest>> by_expiry_;
};

}  // namespace tie::wsd
