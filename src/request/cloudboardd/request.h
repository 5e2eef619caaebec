// One request's way through cloudboardd: order, key, replay, ticket, helper, chunks one way and sealed events the
// other. Never sees plaintext or a key. Belongs to the event loop's thread; kept alive by its stream and by Node until
// ended(). Source: ARCHITECTURE.md, "One request".
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "request/cloudboardd/admission.h"
#include "request/cloudboardd/client_stream.h"
#include "request/cloudboardd/framed_caller.h"
#include "request/cloudboardd/invoke_order.h"
#include "request/cloudboardd/key_board.h"
#include "request/cloudboardd/limits.h"
#include "request/cloudboardd/outcomes.h"
#include "request/cloudboardd/pair_pool.h"
#include "wsd.pb.h"

namespace tie::request::cloudboard {

using Authorizer = FramedCaller<v1::AuthorizeRequest, v1::AuthorizeReply>;

// What requests share. Outlives them.
struct RequestServices {
  EventLoop& loop;
  KeyBoard& keys;
  PairPool& pool;
  Authorizer& authorizer;
  OutcomeCounts& outcomes;
  const std::string& cache_socket;
};

class Request : private HelperOwner, public std::enable_shared_from_this<Request> {
 public:
  // principal: MAC of the caller's transport credential, or empty.
  Request(RequestServices services, std::shared_ptr<ClientStream> stream, Admission::Slot slot, std::string principal);

  void begin() { stream_->read_next(); }
  void on_message(v1::InvokeRequest message);
  void on_client_closed();  // half-close, or a stream that broke
  void on_client_gone();    // cancelled
  void on_taken();          // the transport took queued bytes
  void check_deadlines(int64_t now_ms);
  bool ended() const { return ended_; }

 private:
  Result<void> handle(v1::InvokeRequest& message);
  Result<void> on_parameters(const std::string& clear_parameters);
  Result<void> on_chunk(v1::SealedChunk& chunk);
  void authorize(const v1::ClearParameters& clear);
  void take_helper();
  void start_when_ready();
  void send_chunk(v1::SealedChunk& chunk);
  void read_on();
  void forward(v1::FromHelper& message);
  void end(Error status, bool drop_queued = false);

  void helper_said(Helper& helper, v1::FromHelper& message) override;
  void helper_took_input(Helper&) override { read_on(); }
  void helper_lost(Helper& helper) override;

  RequestServices services_;
  std::shared_ptr<ClientStream> stream_;
  Admission::Slot slot_;
  std::string principal_;
  InvokeOrder order_;
  std::string clear_parameters_, ticket_;
  bool token_required_ = false;
  bool authorized_ = false, started_ = false, header_sent_ = false, answered_ = false, reading_ = true, ended_ = false;
  PairPool::Ticket pool_ticket_ = 0;
  std::shared_ptr<Helper> helper_;
  std::vector<v1::SealedChunk> early_chunks_;
  size_t early_bytes_ = 0, request_bytes_ = 0;
  int64_t begin_ms_, client_ms_, helper_ms_;  // when it began, and when we last heard of each side
};

}  // namespace tie::request::cloudboard
