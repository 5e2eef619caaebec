// A connection as cpp-httplib wants to see it, with our limits: how many bytes a request may have, by when they must
// have come, how long a client may take to read. Private to http_server.cc. One thread.
#pragma once
#include <httplib.h>

#include <array>

#include "base/clock.h"
#include "client/proxy/limits.h"

namespace tie::client {

class ClientStream final : public httplib::Stream {
 public:
  explicit ClientStream(int socket) : socket_(socket) {}

  // Waits up to `idle_ms` for the first byte of the next request. False: none came, the client left, or `stop` was
  // raised.
  bool wait_for_request(const std::atomic<bool>& stop, int64_t idle_ms);
  // The headers are through: the budget is now the body's.
  // A body of known length may be drained when it is over the limit; a chunked one has no length to look at first.
  void begin_body(bool chunked);
  bool over_budget() const { return over_budget_; }
  // Reads and drops what a refused client still sends, for a moment, so that it gets to read the refusal.
  void linger();

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* out, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  int socket() const override { return socket_; }

 private:
  bool wait(short events, int64_t ms) const;

  int socket_;
  std::array<char, 16 << 10> buffer_;
  size_t start_ = 0, end_ = 0;
  size_t budget_bytes_ = 0;
  Deadline deadline_{};
  bool over_budget_ = false;
};

}  // namespace tie::client
