// A pretended node as a program, for tests of the user's side in other languages: fake_node PORT POLICY_FILE. Writes a
// policy that trusts it. What it answers depends on the last user text: "cut" begins and cuts, "forge" corrupts, "hang"
// begins and waits, "pace" sends a thousand words, one every two milliseconds, else an echo.
#include <signal.h>

#include <cstdio>
#include <thread>

#include "client/session/testing/fake_node.h"
#include "keys/attestation/policy.h"
#include "os/fd.h"

namespace {

using tie::client::testing::FakeCall;

std::string last_text(const tie::v1::InferenceRequest& request) {
  const auto& messages = request.conversation().messages();
  return messages.empty() || messages.rbegin()->parts_size() == 0 ? request.raw_text()
                                                                  : messages.rbegin()->parts(0).text();
}

void answer(FakeCall& call) {
  std::string text = last_text(call.request());
  if (text == "cut") {
    call.send_text("begun");
    return call.cut();
  }
  if (text == "forge") {
    call.send_text("begun");
    call.corrupt_next();
    call.send_text("forged");
    return;
  }
  if (text == "hang") {
    call.send_text("begun");
    while (!call.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return;
  }
  if (text.starts_with("pace")) {
    for (int i = 0; i < 1000 && call.send_text(" word"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return call.finish_with(tie::v1::FinalSummary::OK);
  }
  tie::client::testing::echo_script(call);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  tie::client::testing::FakeNode node(answer, std::atoi(argv[1]));
  tie::attestation::Policy policy{.release_ids = {tie::client::testing::fake_release()},
                                  .accepted_kinds = {"software"}};
  if (!tie::os::write_file_atomic(argv[2], tie::as_bytes(tie::attestation::render_policy(policy)))) return 1;
  std::printf("%s\n", node.address().c_str());
  std::fflush(stdout);
  ::pause();
}
