#include "keys/tpm/tpm_link.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "os/unix_socket.h"

namespace tie::tpm {

Result<TpmLink> TpmLink::open(const std::string& path) {
  struct stat st{};
  if (::stat(path.c_str(), &st) != 0) return fail_errno("the TPM at " + path, errno);
  if (S_ISSOCK(st.st_mode)) {
    TIE_TRY(os::Fd socket, os::connect_unix(path, Deadline::in_ms(kCommandTimeoutMs)));
    return TpmLink(std::move(socket), true);
  }
  os::Fd device(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!device) return fail_errno("the TPM at " + path, errno);
  return TpmLink(std::move(device), false);
}

Result<Bytes> TpmLink::transact(ByteView command) {
  const Deadline deadline = Deadline::in_ms(kCommandTimeoutMs);
  TIE_CHECK_OK(os::write_all(fd_.get(), command, deadline));
  Bytes response(kHeaderBytes);
  if (socket_) {
    TIE_CHECK_OK(os::read_exact(fd_.get(), response, deadline));
  } else {
    // The device hands out a response in one read.
    TIE_CHECK_OK(os::wait_readable(fd_.get(), deadline));
    response.resize(kMaxMessageBytes);
    const ssize_t size = ::read(fd_.get(), response.data(), response.size());
    if (size < static_cast<ssize_t>(kHeaderBytes)) return fail(Code::kIo, "the TPM gave no response");
    response.resize(static_cast<size_t>(size));
  }
  const size_t size = load_u32_be(response.data() + 2);
  if (size < kHeaderBytes || size > kMaxMessageBytes) return fail(Code::kCorrupt, "the TPM's response has no size");
  if (socket_) {
    response.resize(size);
    TIE_CHECK_OK(os::read_exact(fd_.get(), std::span(response).subspan(kHeaderBytes), deadline));
  }
  if (response.size() != size) return fail(Code::kCorrupt, "the TPM's response is cut");
  return response;
}

}  // namespace tie::tpm
