#include "request/cloudboardd/invoke_stream.h"

#include <atomic>
#include <deque>
#include <mutex>

#include "request/cloudboardd/grpc_status.h"

namespace tie::request::cloudboard {
namespace {

// Threads: gRPC's call On*, the loop's calls the ClientStream part. A lock is never held while gRPC is called.
class InvokeStream final : public grpc::ServerBidiReactor<v1::InvokeRequest, v1::InvokeResponse>,
                           public ClientStream,
                           public std::enable_shared_from_this<InvokeStream> {
 public:
  InvokeStream(EventLoop& loop, grpc::CallbackServerContext* context) : loop_(loop), context_(context) {}

  void begin(Node& node) {
    self_ = shared_from_this();
    auto slot = node.admit();
    if (!slot) return Finish(to_status(*context_, slot.error()));
    auto credential = context_->client_metadata().find("authorization");
    std::string principal;
    if (credential != context_->client_metadata().end())
      principal = node.principal_of({credential->second.data(), credential->second.size()});
    loop_.post([self = self_, &node, slot = std::move(*slot), principal = std::move(principal)]() mutable {
      self->request_ = node.begin_request(self, std::move(slot), std::move(principal));
    });
  }

  // ---- the loop's side ----
  void read_next() override {
    if (!finish_asked_) StartRead(&incoming_);
  }

  void send(v1::InvokeResponse message) override {
    {
      std::lock_guard lock(mutex_);
      if (finish_asked_ || broken_) return;
      queued_bytes_ += message.chunk().sealed().size();
      queue_.push_back(std::move(message));
      if (writing_) return;
      writing_ = true;
      write_begin_ms_ = monotonic_ms();
    }
    StartWrite(&queue_.front());
  }

  size_t queued_bytes() const override { return queued_bytes_; }

  int64_t stalled_ms() const override {
    std::lock_guard lock(mutex_);
    return writing_ ? monotonic_ms() - write_begin_ms_ : 0;
  }

  void finish(const Error& status, bool drop_queued) override {
    if (finish_asked_) return;
    // Before finish_asked_: until then nobody calls Finish, so the context is alive.
    if (drop_queued) context_->TryCancel();
    {
      std::lock_guard lock(mutex_);
      finish_asked_ = true;
      status_ = status;
      if (writing_) return;
    }
    end();
  }

 private:
  // ---- gRPC's side ----
  void OnReadDone(bool ok) override {
    if (!ok) return tell([](Request& request) { request.on_client_closed(); });
    // Emptied before the loop hears of it: from then on the next read may be writing to incoming_.
    v1::InvokeRequest message;
    message.Swap(&incoming_);
    tell([message = std::move(message)](Request& request) mutable { request.on_message(std::move(message)); });
  }

  void OnWriteDone(bool ok) override {
    bool tell_taken, write, finish;
    {
      std::lock_guard lock(mutex_);
      size_t bytes = queue_.front().chunk().sealed().size();
      tell_taken = queued_bytes_ >= kPauseHelperBytes && queued_bytes_ - bytes < kPauseHelperBytes;
      queued_bytes_ -= bytes;
      queue_.pop_front();
      if (!ok) {
        broken_ = true;
        queue_.clear();
        queued_bytes_ = 0;
      }
      write = !queue_.empty();
      writing_ = write;
      write_begin_ms_ = monotonic_ms();
      finish = !write && finish_asked_;
    }
    if (finish) return end();
    if (write) StartWrite(&queue_.front());
    if (tell_taken) tell([](Request& request) { request.on_taken(); });
  }

  void OnCancel() override {
    tell([](Request& request) { request.on_client_gone(); });
  }

  void OnDone() override {
    // The request holds descriptors that the loop watches: it must die there, and this object with it.
    loop_.post([self = std::move(self_)] { self->request_.reset(); });
  }

  void end() { Finish(to_status(*context_, status_)); }

  template <typename Call>
  void tell(Call call) {
    loop_.post([self = shared_from_this(), call = std::move(call)]() mutable {
      if (self->request_) call(*self->request_);
    });
  }

  EventLoop& loop_;
  grpc::CallbackServerContext* context_;
  std::shared_ptr<InvokeStream> self_;
  std::shared_ptr<Request> request_;  // the loop's
  v1::InvokeRequest incoming_;

  mutable std::mutex mutex_;
  std::deque<v1::InvokeResponse>
      queue_;  // the front is being written while writing_; a deque does not move its elements
  std::atomic<size_t> queued_bytes_ = 0;
  int64_t write_begin_ms_ = 0;
  bool writing_ = false, broken_ = false;
  std::atomic<bool> finish_asked_ = false;
  Error status_;
};

}  // namespace

grpc::ServerBidiReactor<v1::InvokeRequest, v1::InvokeResponse>* serve_invoke(EventLoop& loop, Node& node,
                                                                             grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<InvokeStream>(loop, context);
  stream->begin(node);
  return stream.get();
}

}  // namespace tie::request::cloudboard
