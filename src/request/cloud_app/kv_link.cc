#include "request/cloud_app/kv_link.h"

#include "base/random.h"
#include "kvxfer.pb.h"
#include "os/reply_socket.h"
#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

constexpr size_t kMaxReplyBytes = 1024;
constexpr size_t kHandleBytes = 16;

std::string new_handle() {
  std::string handle(kHandleBytes, '\0');
  random_bytes({reinterpret_cast<uint8_t*>(handle.data()), handle.size()});
  return handle;
}

}  // namespace

cache::KvDescription KvFacts::description(uint32_t block_count) const {
  return {.model_id = identity.model_id,
          .release_id = identity.release_id,
          .layout_id = identity.layout_id,
          .block_count = block_count,
          .block_tokens = block_tokens,
          .block_bytes = block_bytes};
}

struct KvLink::Answer : os::Received<v1::KvxferReply> {};

Result<std::unique_ptr<KvLink>> KvLink::connect(const std::string& socket) {
  TIE_TRY(os::Fd fd, os::connect_unix(socket, Deadline::in_ms(kConnectTimeoutMs)));
  v1::KvxferRequest request;
  request.mutable_describe();
  TIE_CHECK_OK(os::send_message(fd.get(), request, Deadline::in_ms(kConnectTimeoutMs)));
  return std::unique_ptr<KvLink>(new KvLink(std::move(fd)));
}

Result<KvLink::Answer> KvLink::receive(Deadline deadline) {
  TIE_TRY(auto received, os::receive_or_close<v1::KvxferReply>(socket_, kMaxReplyBytes, deadline));
  return Answer{std::move(received)};
}

Result<KvLink::Answer> KvLink::ask(const v1::KvxferRequest& request, Deadline deadline, int fd) {
  TIE_CHECK_OK(facts(deadline));  // its answer comes first
  auto fds = fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>();
  TIE_CHECK_OK(os::send_or_close(socket_, request, deadline, fds));
  return receive(deadline);
}

Result<KvFacts> KvLink::facts(Deadline deadline) {
  if (facts_) return *facts_;
  TIE_TRY(Answer answer, receive(deadline));
  KvFacts facts;
  TIE_TRY(facts.identity.model_id, crypto::digest_from(as_bytes(answer.message.model_id()), "model id"));
  TIE_TRY(facts.identity.release_id, crypto::digest_from(as_bytes(answer.message.release_id()), "release id"));
  TIE_TRY(facts.identity.layout_id, crypto::digest_from(as_bytes(answer.message.layout_id()), "layout id"));
  facts.block_tokens = answer.message.block_tokens();
  facts.block_bytes = answer.message.block_bytes();
  if (facts.block_tokens == 0 || facts.block_tokens > kMaxKvBlockTokens || facts.block_bytes == 0 ||
      facts.block_bytes > cache::kMaxBlockBytes)
    return fail(Code::kCorrupt, "the runtime's blocks have an impossible size");
  facts_ = facts;
  return facts;
}

Result<std::string> KvLink::offer(const cache::KvProducer& buffer, Deadline deadline) {
  v1::KvxferRequest request;
  std::string handle = new_handle();
  request.mutable_offer_import()->set_handle(handle);
  TIE_TRY(Answer answer, ask(request, deadline, buffer.fd()));
  return handle;
}

Result<KvLink::Export> KvLink::request_export(uint32_t first_token, uint32_t max_tokens, Deadline deadline) {
  v1::KvxferRequest request;
  auto* wanted = request.mutable_request_export();
  std::string handle = new_handle();
  wanted->set_handle(handle);
  wanted->set_first_token(first_token);
  wanted->set_max_tokens(max_tokens);
  TIE_TRY(Answer answer, ask(request, deadline));
  if (answer.fds.size() != 1) return fail(Code::kCorrupt, "an export comes with one descriptor");
  TIE_TRY(auto buffer, cache::KvConsumer::attach(std::move(answer.fds[0])));
  uint32_t blocks = buffer.description().block_count;
  if (buffer.description() != facts_->description(blocks) || blocks > max_tokens / facts_->block_tokens)
    return fail(Code::kCorrupt, "the runtime's buffer is not what was asked for");
  return Export{std::move(handle), std::move(buffer)};
}

}  // namespace tie::request::app
