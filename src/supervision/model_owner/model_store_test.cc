#include "supervision/model_owner/model_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

namespace tie::owner {
namespace {

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tie-store-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    assets_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(assets_); }
  void add_model(const std::string& name) { std::filesystem::create_directories(assets_ + "/models/" + name); }

  static Result<LoadedModel> load_anything(const std::string& name, const std::string&) {
    LoadedModel model;
    model.name = name;
    return model;
  }
  std::string assets_;
};

TEST_F(StoreTest, ReadsEveryModelOnceHoweverOftenItIsAttached) {
  add_model("a");
  add_model("b");
  add_model(".hidden");
  ModelStore store(assets_, load_anything);
  ASSERT_TRUE(store.scan());
  store.load();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(store.attach("a", Deadline::in_ms(0)));
  auto rows = store.rows();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].weight_file_reads, 1u);
  EXPECT_EQ(rows[0].attaches, 5u);
  EXPECT_EQ(rows[1].attaches, 0u);
}

TEST_F(StoreTest, AnAttachWaitsForALoadingModelAndNoLonger) {
  add_model("a");
  ModelStore store(assets_, load_anything);
  ASSERT_TRUE(store.scan());
  auto early = store.attach("a", Deadline::in_ms(30));
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, Code::kNotReady);
  std::thread loading([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    store.load();
  });
  EXPECT_TRUE(store.attach("a", Deadline::in_ms(5'000)));
  loading.join();
}

TEST_F(StoreTest, AFailedModelSaysWhyAndLeavesTheOthersAlone) {
  add_model("bad");
  add_model("good");
  ModelStore store(assets_, [](const std::string& name, const std::string& folder) -> Result<LoadedModel> {
    if (name == "bad") return fail(Code::kCorrupt, "tensor x is cut");
    return load_anything(name, folder);
  });
  ASSERT_TRUE(store.scan());
  store.load();
  auto bad = store.attach("bad", Deadline::in_ms(0));
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("tensor x is cut"), std::string::npos);
  EXPECT_TRUE(store.attach("good", Deadline::in_ms(0)));
  auto unknown = store.attach("../good", Deadline::in_ms(0));
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::kModelNotFound);
}

TEST_F(StoreTest, StopWakesAWaitingAttach) {
  add_model("a");
  ModelStore store(assets_, load_anything);
  ASSERT_TRUE(store.scan());
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    store.stop();
  });
  int64_t start = monotonic_ms();
  auto attached = store.attach("a", Deadline::in_ms(10'000));
  EXPECT_LT(monotonic_ms() - start, 5'000);
  ASSERT_FALSE(attached);
  EXPECT_EQ(attached.error().code, Code::kCancelled);
  stopper.join();
}

}  // namespace
}  // namespace tie::owner
