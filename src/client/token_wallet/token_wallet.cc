#include "client/token_wallet/token_wallet.h"

#include <algorithm>

#include "base/clock.h"
#include "base/secret_bytes.h"
#include "keys/tokens/token.h"

namespace tie::client {

Result<std::shared_ptr<TokenWallet>> TokenWallet::open(WalletOptions options) {
  if (options.batch > kMaxBatch) return fail(Code::kBadRequest, "at most 256 tokens are held ahead");
  TIE_TRY(auto link, IssuerLink::open(options.issuer_url, options.api_key, kIssuerTimeoutMs));
  return std::shared_ptr<TokenWallet>(new TokenWallet(std::move(options), std::move(link)));
}

TokenWallet::TokenWallet(WalletOptions options, std::unique_ptr<IssuerLink> link)
    : options_(std::move(options)), link_(std::move(link)) {}

TokenWallet::~TokenWallet() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wanted_.notify_all();
  }
  link_->interrupt();
  if (fetcher_.joinable()) fetcher_.join();
  for (Held& held : held_) secure_zero(held.token);
}

size_t TokenWallet::held() const {
  std::lock_guard lock(mutex_);
  return held_.size();
}

Result<Bytes> TokenWallet::take(ByteView challenge) {
  auto asked = tokens::decode_challenge(challenge);
  if (!asked) return fail(Code::kCorrupt, "the node asks for tokens in a way that cannot be understood");
  if (asked->issuer_name != link_->issuer_name())
    return fail(Code::kFailedPrecondition,
                "this node takes tokens of the issuer " + asked->issuer_name + ", not of " + link_->issuer_name());
  std::optional<Bytes> token = take_held(challenge);
  if (!token) {
    TIE_TRY(Held fetched, fetch(challenge));
    token = std::move(fetched.token);
  }
  want_more();
  return std::move(*token);
}

std::optional<Bytes> TokenWallet::take_held(ByteView challenge) {
  std::lock_guard lock(mutex_);
  if (!std::equal(challenge.begin(), challenge.end(), challenge_.begin(), challenge_.end())) {
    held_.clear();
    challenge_.assign(challenge.begin(), challenge.end());
  }
  const int64_t now_s = wall_clock_ms() / 1000;
  std::erase_if(held_, [&](const Held& held) { return held.not_after_s <= now_s; });
  if (held_.empty()) return std::nullopt;
  Bytes out = std::move(held_.front().token);
  held_.pop_front();
  return out;
}

Result<const tokens::IssuerKey*> TokenWallet::choose_key() {
  const int64_t now_ms = monotonic_ms(), now_s = wall_clock_ms() / 1000;
  if (!directory_ || now_ms - directory_at_ms_ > kDirectoryMaxAgeMs) {
    TIE_TRY(directory_, link_->directory());
    directory_at_ms_ = now_ms;
  }
  const tokens::IssuerKey* best = nullptr;
  for (const tokens::IssuerKey& key : directory_->keys) {
    const bool usable = key.not_before_s <= now_s && key.not_after_s - kTokenMarginS > now_s;
    if (usable && (best == nullptr || key.not_before_s > best->not_before_s)) best = &key;
  }
  if (best == nullptr) {
    directory_.reset();
    return fail(Code::kNotReady, "the token issuer has no key that counts now");
  }
  return best;
}

Result<TokenWallet::Held> TokenWallet::fetch(ByteView challenge) {
  std::lock_guard one_at_a_time(link_mutex_);
  TIE_TRY(const tokens::IssuerKey* key, choose_key());
  TIE_TRY(auto pending, tokens::PendingToken::begin(key->key, challenge));
  auto response = link_->issue(*directory_, pending.request());
  if (!response) {
    directory_.reset();  // perhaps the issuer has other keys now
    return std::unexpected(std::move(response.error()));
  }
  TIE_TRY(Bytes token, pending.finish(key->key, *response));
  return Held{std::move(token), key->not_after_s - kTokenMarginS};
}

void TokenWallet::want_more() {
  if (options_.batch == 0) return;
  std::lock_guard lock(mutex_);
  if (stopping_ || held_.size() > options_.batch / 2) return;
  more_ = true;
  if (!fetcher_.joinable()) fetcher_ = std::thread([this] { fetch_ahead(); });
  wanted_.notify_all();
}

// After an error it waits to be asked again: an issuer in trouble is not helped by more requests.
void TokenWallet::fetch_ahead() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [this] { return more_ || stopping_; });
    if (stopping_) return;
    const Bytes challenge = challenge_;
    lock.unlock();
    auto fetched = fetch(challenge);
    lock.lock();
    if (fetched && challenge == challenge_) held_.push_back(std::move(*fetched));
    more_ = fetched && held_.size() < options_.batch;
  }
}

}  // namespace tie::client
