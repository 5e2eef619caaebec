#include "cache/prefix/owner_link.h"

#include "os/framed_message.h"
#include "os/unix_socket.h"
#include "owner.pb.h"

namespace tie::prefix {
namespace {

constexpr size_t kMaxReplyBytes = size_t{16} << 20;  // a trie, or the tokens of every prompt

}  // namespace

Result<OwnerLink> OwnerLink::connect(const std::string& owner_socket, std::string model, uint32_t rank,
                                     Deadline deadline) {
  OwnerLink link;
  TIE_TRY(link.socket_, os::connect_unix(owner_socket, deadline));
  link.model_ = std::move(model);
  link.rank_ = rank;
  return link;
}

Result<std::pair<v1::OwnerReply, std::vector<os::Fd>>> OwnerLink::ask(const v1::OwnerRequest& request,
                                                                      Deadline deadline) {
  TIE_CHECK_OK(os::send_message(socket_.get(), request, deadline));
  TIE_TRY(auto reply, os::receive_message<v1::OwnerReply>(socket_.get(), kMaxReplyBytes, deadline, 1));
  const v1::ErrorDetail& error = reply.message.error();
  if (reply.message.has_error() && error.code() != v1::OK)
    return fail(static_cast<Code>(error.code()), error.message());
  return std::pair{std::move(reply.message), std::move(reply.fds)};
}

Result<std::vector<PromptEntry>> OwnerLink::prompts(Deadline deadline) {
  v1::OwnerRequest request;
  auto& prepare = *request.mutable_prepare_prefix();
  prepare.set_model(model_);
  prepare.set_rank(rank_);  // no blocks: only the prompts are asked for
  TIE_TRY(auto reply, ask(request, deadline));
  std::vector<PromptEntry> out;
  for (const v1::SystemPrompt& prompt : reply.first.prompts())
    out.push_back({prompt.prompt_id(), {prompt.token_ids().begin(), prompt.token_ids().end()}, {}});
  return out;
}

Result<os::Fd> OwnerLink::prepare(uint64_t block_bytes, uint32_t block_count, const crypto::Digest& layout_id,
                                  Deadline deadline) {
  v1::OwnerRequest request;
  auto& prepare = *request.mutable_prepare_prefix();
  prepare.set_model(model_);
  prepare.set_rank(rank_);
  prepare.set_block_bytes(block_bytes);
  prepare.set_block_count(block_count);
  prepare.set_layout_id(layout_id.data(), layout_id.size());
  TIE_TRY(auto reply, ask(request, deadline));
  if (reply.second.size() != 1) return fail(Code::kCorrupt, "the owner sent no pool");
  return std::move(reply.second[0]);
}

Result<void> OwnerLink::seal(const TrieMetadata& metadata, Deadline deadline) {
  v1::OwnerRequest request;
  auto& seal = *request.mutable_seal_prefix();
  seal.set_model(model_);
  seal.set_rank(rank_);
  to_proto(metadata, *seal.mutable_trie());
  TIE_CHECK_OK(ask(request, deadline));
  return {};
}

Result<OwnerLink::Attached> OwnerLink::attach(Deadline deadline) {
  v1::OwnerRequest request;
  auto& attach = *request.mutable_attach_prefix();
  attach.set_model(model_);
  attach.set_rank(rank_);
  TIE_TRY(auto reply, ask(request, deadline));
  if (reply.second.size() != 1) return fail(Code::kCorrupt, "the owner sent no pool");
  Attached out;
  out.fd = std::move(reply.second[0]);
  TIE_TRY(out.metadata, from_proto(reply.first.trie()));
  return out;
}

Result<void> OwnerLink::reset(Deadline deadline) {
  v1::OwnerRequest request;
  request.mutable_reset_prefix()->set_model(model_);
  TIE_CHECK_OK(ask(request, deadline));
  return {};
}

}  // namespace tie::prefix
