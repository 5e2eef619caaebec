// Mutually authenticated TLS 1.3 over TCP, as a plain descriptor: bytes written to it leave encrypted, and the reverse.
// Threads: any; each link has one pumping thread, which ends with either side. Owns: the sockets until the link ends.
// Deadlines bound connecting and the handshake. Errors: kIo (cannot connect), kUnauthenticated (certificate, name),
// kDeadline.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "os/fd.h"

struct ssl_ctx_st;

namespace tie::keys {

// PEM files. The peer's certificate must be of `authority` and carry `peer_name` as its DNS name.
struct TlsIdentity {
  std::string certificate, private_key, authority, peer_name;
};

class TlsContext {
 public:
  // kBadRequest, naming the file, when one of them cannot be used.
  static Result<TlsContext> server(const TlsIdentity& identity);
  static Result<TlsContext> client(const TlsIdentity& identity);
  TlsContext(TlsContext&& other) noexcept;
  ~TlsContext();
  ssl_ctx_st* get() const { return context_; }
  bool is_server() const { return is_server_; }

 private:
  TlsContext(ssl_ctx_st* context, bool is_server) : context_(context), is_server_(is_server) {}
  ssl_ctx_st* context_;
  bool is_server_;
};

// host:port of an address or name; IPv6 in brackets.
Result<os::Fd> listen_tcp(const std::string& address);
Result<os::Fd> connect_tcp(const std::string& address, Deadline deadline);

// Does the handshake on `tcp` and starts pumping. Returns the plain end; `ended` is called once, on the pumping thread,
// when the link is gone.
Result<os::Fd> start_tls(const TlsContext& context, os::Fd tcp, Deadline deadline,
                         std::function<void()> ended = nullptr);

}  // namespace tie::keys
