#include "cache/store/store_client.h"

#include "os/reply_socket.h"
#include "store.pb.h"

namespace tie::cache {
namespace {

constexpr size_t kMaxReplyBytes = kMaxManifestBytes + 4096;

void set_id(std::string* field, const EntryId& id) {
  field->assign(id.begin(), id.end());
}

}  // namespace

ByteView FetchedEntry::bytes() const {
  if (mapping_.size() == 0) return small_;
  return {reinterpret_cast<const uint8_t*>(mapping_.bytes().data()), mapping_.size()};
}

struct StoreClient::Answer : os::Received<v1::StoreReply> {};

Result<StoreClient::Answer> StoreClient::receive(Deadline deadline) {
  TIE_TRY(auto received, os::receive_or_close<v1::StoreReply>(socket_, kMaxReplyBytes, deadline));
  return Answer{std::move(received)};
}

Result<StoreClient::Answer> StoreClient::ask(const v1::StoreRequest& request, Deadline deadline, const os::Fd* memory) {
  if (!usable()) return fail(Code::kNotReady, "there is no cache store");
  if (!bound_) {
    auto answer = receive(deadline);
    if (!answer) {
      socket_.close();  // without a principal it would refuse everything
      return answer;
    }
    bound_ = true;
  }
  int fd = memory != nullptr ? memory->get() : -1;
  auto fds = fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>();
  TIE_CHECK_OK(os::send_or_close(socket_, request, deadline, fds));
  return receive(deadline);
}

Result<FetchedEntry> StoreClient::get(const EntryId& id, Deadline deadline) {
  v1::StoreRequest request;
  set_id(request.mutable_get()->mutable_entry_id(), id);
  TIE_TRY(Answer answer, ask(request, deadline));
  FetchedEntry out;
  if (answer.fds.empty()) {
    const std::string& value = answer.message.value();
    out.small_.assign(value.begin(), value.end());
    return out;
  }
  // Sealed against shrinking before it is mapped: else whoever made it could end this process.
  TIE_CHECK_OK(os::require_seals(answer.fds[0].get(), os::kSealAll));
  TIE_TRY(size_t size, os::file_size(answer.fds[0].get()));
  if (size == 0 || size != answer.message.bytes()) return fail(Code::kCorrupt, "an entry has not its stated size");
  TIE_TRY(out.mapping_, os::Mapping::read_only(answer.fds[0].get()));
  return out;
}

Result<void> StoreClient::put(const EntryId& id, const os::Fd& memory, uint64_t bytes, uint32_t ttl_ms,
                              Deadline deadline) {
  v1::StoreRequest request;
  set_id(request.mutable_put()->mutable_entry_id(), id);
  request.mutable_put()->set_bytes(bytes);
  request.mutable_put()->set_ttl_ms(ttl_ms);
  TIE_TRY(Answer answer, ask(request, deadline, &memory));
  return {};
}

Result<void> StoreClient::swap(const EntryId& id, ByteView expected_sha256, ByteView value, uint32_t ttl_ms,
                               Deadline deadline) {
  v1::StoreRequest request;
  auto* swap = request.mutable_swap();
  set_id(swap->mutable_entry_id(), id);
  swap->set_expected_sha256(expected_sha256.data(), expected_sha256.size());
  swap->set_value(value.data(), value.size());
  swap->set_ttl_ms(ttl_ms);
  TIE_TRY(Answer answer, ask(request, deadline));
  return {};
}

Result<void> StoreClient::remove(const EntryId& id, Deadline deadline) {
  v1::StoreRequest request;
  set_id(request.mutable_delete_()->mutable_entry_id(), id);
  TIE_TRY(Answer answer, ask(request, deadline));
  return {};
}

}  // namespace tie::cache
