// One-time tokens in the memory of this process. take() gives each once; when few are left a thread of the wallet
// fetches more, so that a request does not wait for the issuer and the issuer does not see when requests happen. The
// first request, and one after the tokens ran out, waits for a single token. Tokens of a node's earlier start are
// dropped, for they open nothing any more. Threads: take() on any; one of its own while `ahead` is set. Secrets: the
// tokens and the API key; they die with the object. Source: RFC 9578.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "client/session/token_source.h"
#include "client/token_wallet/issuer_link.h"

namespace tie::client {

constexpr int64_t kIssuerTimeoutMs = 10'000;
constexpr int64_t kDirectoryMaxAgeMs = 10 * 60 * 1000;
constexpr int64_t kTokenMarginS = 60;  // a key this close to its end is not used any more
constexpr size_t kMaxBatch = 256;

struct WalletOptions {
  std::string issuer_url;
  std::string api_key;
  size_t batch = 16;  // held after a fetch ahead of need; 0: none, each is fetched when it is wanted
};

class TokenWallet final : public TokenSource {
 public:
  // Talks to nobody yet. kBadRequest for an address that cannot be used.
  static Result<std::shared_ptr<TokenWallet>> open(WalletOptions options);
  ~TokenWallet() override;
  // Errors: kFailedPrecondition when the challenge names another issuer, those of IssuerLink::issue().
  Result<Bytes> take(ByteView challenge) override;
  size_t held() const;

 private:
  struct Held {
    Bytes token;
    int64_t not_after_s;
  };
  TokenWallet(WalletOptions options, std::unique_ptr<IssuerLink> link);
  Result<Held> fetch(ByteView challenge);
  Result<const tokens::IssuerKey*> choose_key();
  std::optional<Bytes> take_held(ByteView challenge);
  void want_more();
  void fetch_ahead();

  const WalletOptions options_;
  std::mutex link_mutex_;  // one conversation with the issuer at a time; taken before mutex_
  std::unique_ptr<IssuerLink> link_;
  std::optional<tokens::Directory> directory_;
  int64_t directory_at_ms_ = 0;

  mutable std::mutex mutex_;  // what follows
  std::condition_variable wanted_;
  Bytes challenge_;  // that `held_` was made for
  std::deque<Held> held_;
  bool more_ = false, stopping_ = false;
  std::thread fetcher_;
};

}  // namespace tie::client
