// Server streams that always show the newest state: each watcher gets the present value, then the newest one whenever
// it has taken the last. A slow watcher skips values and holds nothing up. Threads: any.
#pragma once
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <mutex>
#include <set>

namespace tie::request::cloudboard {

template <typename Message>
class WatchStream final : public grpc::ServerWriteReactor<Message>,
                          public std::enable_shared_from_this<WatchStream<Message>> {
 public:
  using Gone = std::function<void(const std::shared_ptr<WatchStream>&)>;

  // gone: called once, when the stream has ended for whatever reason. The stream keeps itself alive until then.
  static std::shared_ptr<WatchStream> create(Gone gone) {
    std::shared_ptr<WatchStream> stream(new WatchStream(std::move(gone)));
    stream->self_ = stream;
    return stream;
  }

  void offer(std::shared_ptr<const Message> message) {
    {
      std::lock_guard lock(mutex_);
      if (closing_) return;
      if (writing_) {
        next_ = std::move(message);
        return;
      }
      writing_ = true;
      sending_ = std::move(message);
    }
    this->StartWrite(sending_.get());
  }

  void close(grpc::Status status) {
    {
      std::lock_guard lock(mutex_);
      if (closing_) return;
      closing_ = true;
      status_ = std::move(status);
      if (writing_) return;
    }
    this->Finish(status_);
  }

 private:
  explicit WatchStream(Gone gone) : gone_(std::move(gone)) {}

  void OnWriteDone(bool ok) override {
    bool finish;
    {
      std::lock_guard lock(mutex_);
      if (!ok && !closing_) {
        closing_ = true;
        status_ = grpc::Status::CANCELLED;
      }
      finish = closing_;
      sending_ = std::move(next_);
      writing_ = !finish && sending_ != nullptr;
      if (!finish && !writing_) return;
    }
    if (finish)
      this->Finish(status_);
    else
      this->StartWrite(sending_.get());
  }
  void OnCancel() override { close(grpc::Status::CANCELLED); }
  void OnDone() override {
    auto keep = std::move(self_);
    if (gone_) gone_(keep);
  }

  Gone gone_;
  std::shared_ptr<WatchStream> self_;
  std::mutex mutex_;
  std::shared_ptr<const Message> sending_, next_;
  bool writing_ = false, closing_ = false;
  grpc::Status status_;
};

template <typename Message>
class Publisher {
 public:
  explicit Publisher(size_t max_watchers) : max_watchers_(max_watchers) {}

  void publish(const Message& message) {
    auto shared = std::make_shared<const Message>(message);
    std::set<std::shared_ptr<WatchStream<Message>>> watchers;
    {
      std::lock_guard lock(mutex_);
      latest_ = shared;
      watchers = watchers_;
    }
    for (const auto& watcher : watchers) watcher->offer(shared);
  }

  grpc::ServerWriteReactor<Message>* watch() {
    auto stream = WatchStream<Message>::create([this](const auto& gone) {
      std::lock_guard lock(mutex_);
      watchers_.erase(gone);
    });
    std::shared_ptr<const Message> latest;
    bool full;
    {
      std::lock_guard lock(mutex_);
      full = watchers_.size() >= max_watchers_;
      if (!full) watchers_.insert(stream);
      latest = latest_;
    }
    if (full)
      stream->close({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many watchers"});
    else if (latest)
      stream->offer(latest);
    return stream.get();
  }

 private:
  size_t max_watchers_;
  std::mutex mutex_;
  std::shared_ptr<const Message> latest_;
  std::set<std::shared_ptr<WatchStream<Message>>> watchers_;
};

}  // namespace tie::request::cloudboard
