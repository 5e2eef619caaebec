#include "keys/tls_link/tls_link.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "base/secret_bytes.h"
#include "keys/tls_link/pump.h"
#include "os/unix_socket.h"

namespace tie::keys {
namespace {

Result<ssl_ctx_st*> make_context(const TlsIdentity& identity, const SSL_METHOD* method) {
  SSL_CTX* context = SSL_CTX_new(method);
  tie_check(context != nullptr, "libssl makes a context");
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  X509_VERIFY_PARAM* rules = SSL_CTX_get0_param(context);
  X509_VERIFY_PARAM_set_hostflags(rules, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  const std::string* wrong = nullptr;
  if (SSL_CTX_use_certificate_chain_file(context, identity.certificate.c_str()) != 1) {
    wrong = &identity.certificate;
  } else if (SSL_CTX_use_PrivateKey_file(context, identity.private_key.c_str(), SSL_FILETYPE_PEM) != 1 ||
             SSL_CTX_check_private_key(context) != 1) {
    wrong = &identity.private_key;
  } else if (SSL_CTX_load_verify_file(context, identity.authority.c_str()) != 1) {
    wrong = &identity.authority;
  }
  const bool named =
      !identity.peer_name.empty() && X509_VERIFY_PARAM_set1_host(rules, identity.peer_name.c_str(), 0) == 1;
  ERR_clear_error();
  if (wrong == nullptr && named) return context;
  SSL_CTX_free(context);
  return fail(Code::kBadRequest, wrong != nullptr ? "cannot use " + *wrong + " for TLS" : "TLS needs the peer's name");
}

// Runs the handshake to its end on a non-blocking socket.
Result<void> handshake(SSL* ssl, int socket, Deadline deadline) {
  for (;;) {
    const int said = SSL_do_handshake(ssl);
    if (said == 1) return {};
    const int why = SSL_get_error(ssl, said);
    ERR_clear_error();
    if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
      return fail(Code::kUnauthenticated,
                  "the TLS handshake failed: no trusted certificate of the expected name on one side");
    pollfd wait{socket, static_cast<short>(why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT), 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(std::min<int64_t>(deadline.remaining_ms(), 1000)));
    if (ready < 0 && errno != EINTR) return fail_errno("poll", errno);
    if (deadline.passed()) return fail(Code::kDeadline, "the TLS handshake took too long");
  }
}

}  // namespace

Result<TlsContext> TlsContext::server(const TlsIdentity& identity) {
  TIE_TRY(ssl_ctx_st * context, make_context(identity, TLS_server_method()));
  return TlsContext(context, true);
}

Result<TlsContext> TlsContext::client(const TlsIdentity& identity) {
  TIE_TRY(ssl_ctx_st * context, make_context(identity, TLS_client_method()));
  return TlsContext(context, false);
}

TlsContext::TlsContext(TlsContext&& other) noexcept
    : context_(std::exchange(other.context_, nullptr)), is_server_(other.is_server_) {}

TlsContext::~TlsContext() {
  SSL_CTX_free(context_);
}

Result<os::Fd> start_tls(const TlsContext& context, os::Fd tcp, Deadline deadline, std::function<void()> ended) {
  TIE_CHECK_OK(make_nonblocking(tcp.get()));
  SslPtr ssl(SSL_new(context.get()));
  if (!ssl || SSL_set_fd(ssl.get(), tcp.get()) != 1) return fail(Code::kInternal, "libssl gives no connection");
  if (context.is_server()) {
    SSL_set_accept_state(ssl.get());
  } else {
    SSL_set_connect_state(ssl.get());
  }
  TIE_CHECK_OK(handshake(ssl.get(), tcp.get(), deadline));
  TIE_TRY(auto pair, os::socket_pair());
  TIE_CHECK_OK(make_nonblocking(pair.second.get()));
  try {
    std::thread([ssl = std::move(ssl), tcp = std::move(tcp), plain = std::move(pair.second),
                 ended = std::move(ended)]() mutable {
      pump(ssl.get(), tcp.get(), plain.get());
      plain.close();
      tcp.close();
      if (ended) ended();
    }).detach();
  } catch (const std::system_error&) {
    return fail(Code::kOverloaded, "no thread for another TLS link");
  }
  return std::move(pair.first);
}

}  // namespace tie::keys
