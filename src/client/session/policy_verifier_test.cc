#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "client/session/session.h"
#include "client/session/testing/fake_node.h"
#include "inference.pb.h"
#include "keys/attestation/policy.h"
#include "os/fd.h"

namespace tie::client {
namespace {

namespace fs = std::filesystem;

struct PolicyVerifierTest : ::testing::Test {
  testing::FakeNode node{testing::echo_script};
  fs::path folder = fs::temp_directory_path() / ("tie_policy_test." + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }

  std::string policy_for(crypto::Digest release, std::vector<std::string> kinds = {"software"}) {
    std::string path = folder / "policy.toml";
    EXPECT_TRUE(os::write_file_atomic(
        path, as_bytes(attestation::render_policy({.release_ids = {release}, .accepted_kinds = std::move(kinds)}))));
    return path;
  }
  std::shared_ptr<Session> session(const std::string& policy) {
    auto opened = Session::open({.node = node.address(), .policy_path = policy, .first_backoff_ms = 1});
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? *opened : nullptr;
  }
};

TEST_F(PolicyVerifierTest, AcceptsThePinnedReleaseAndSaysUnattested) {
  auto judged = session(policy_for(testing::fake_release()))->node();
  ASSERT_TRUE(judged) << judged.error().message;
  EXPECT_TRUE((*judged)->summary().starts_with("unattested; release=aaaaaaaaaaaa; key="));
}

TEST_F(PolicyVerifierTest, RefusesAnotherReleaseAndSealsNothing) {
  crypto::Digest other = testing::fake_release();
  other[31] ^= 1;
  auto asked = session(policy_for(other));
  v1::InferenceRequest request;
  v1::InferenceEvent event;
  auto answer = asked->ask(request, std::make_shared<Cancellation>());
  auto got = answer->next(event);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::kPermissionDenied);
  EXPECT_EQ(node.requests(), 0);
}

TEST_F(PolicyVerifierTest, NoKindThatIsNotNamed) {
  auto judged = session(policy_for(testing::fake_release(), {"tpm"}))->node();
  ASSERT_FALSE(judged);
  EXPECT_EQ(judged.error().code, Code::kPermissionDenied);
}

TEST_F(PolicyVerifierTest, InspectionTellsEveryCheckAndTheNodesOwnWords) {
  crypto::Digest other{};
  auto seen = session(policy_for(other))->inspect();
  ASSERT_TRUE(seen) << seen.error().message;
  ASSERT_TRUE(seen->refusal);
  EXPECT_EQ(seen->claimed.release_id_hex, to_hex(testing::fake_release()));
  int failed = 0;
  for (const auto& line : seen->verdict) failed += !line.passed;
  EXPECT_EQ(failed, 1);
  EXPECT_GT(seen->verdict.size(), 5u);
}

TEST_F(PolicyVerifierTest, LooksInTheUsersFolderFirst) {
  ::setenv("XDG_CONFIG_HOME", folder.c_str(), 1);
  fs::create_directories(folder / "tie");
  EXPECT_TRUE(os::write_file_atomic(folder / "tie/policy.toml", as_bytes(attestation::render_policy({}))));
  EXPECT_EQ(find_policy("").value_or("none"), (folder / "tie/policy.toml").string());
  EXPECT_EQ(find_policy((folder / "absent").string()).error().code, Code::kNotFound);
  ::unsetenv("XDG_CONFIG_HOME");
}

}  // namespace
}  // namespace tie::client
