// A pretended cloudboardd for tests: one gRPC server on a free loopback port, real request cryptography, no other
// process. A script decides what each request is answered with. Any thread; one object per test. Tests only.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/session/node_verifier.h"
#include "crypto/sha256.h"
#include "inference.pb.h"

namespace tie::client::testing {

// What a script may do with one opened request. Calls block until written; false when the client has gone.
class FakeCall {
 public:
  virtual ~FakeCall() = default;
  virtual const v1::InferenceRequest& request() const = 0;
  virtual bool send(v1::InferenceEvent event) = 0;  // padded, sealed
  virtual bool send_text(const std::string& text) = 0;
  virtual bool cancelled() const = 0;
  virtual void finish_with(v1::FinalSummary::Status status) = 0;  // the authenticated end
  virtual void refuse(Code code,
                      const std::string& message) = 0;  // ends the RPC with the table's status and `tie-error`
  virtual void cut() = 0;                               // ends the RPC with OK and without the authenticated end
  virtual void corrupt_next() = 0;                      // flips a bit of the next sealed chunk
};

// What its software evidence states.
crypto::Digest fake_release();

class FakeNode {
 public:
  using Script = std::function<void(FakeCall&)>;
  explicit FakeNode(Script script, int port = 0);  // 0: any free one
  ~FakeNode();

  std::string address() const;
  void set_script(Script script);
  // Forgets the present key: requests sealed to it get KEY_UNKNOWN_OR_EXPIRED, the bundle carries a new one.
  void rotate_key();
  void set_models(std::vector<std::string> names);
  // The next `count` requests are refused with `code` before anything is opened.
  void refuse_next(int count, Code code);
  // The next `count` fetches of the bundle are refused: kNotReady as by a node that has just started,
  // kKeyUnknownOrExpired as by one whose only key was destroyed.
  void withhold_bundles(int count, Code code = Code::kNotReady);

  int requests() const;   // streams seen
  int bundles() const;    // attestations fetched
  int cancelled() const;  // streams whose client went away
  std::vector<std::string> encapsulated_keys() const;
  std::vector<std::string> credentials() const;  // `authorization` of each call, attestations too; empty: none
  std::vector<size_t> body_sizes() const;        // plaintext bytes of each body

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Believes every well-formed bundle; says "unattested".
std::unique_ptr<NodeVerifier> trusting_verifier();
// Refuses every bundle.
std::unique_ptr<NodeVerifier> refusing_verifier();

// A script that echoes the last user text word by word, honours max_tokens and n, and reports usage.
void echo_script(FakeCall& call);

}  // namespace tie::client::testing
