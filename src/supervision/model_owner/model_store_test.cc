#include "supervision/model_owner/model_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "os/fd.h"

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

TEST_F(StoreTest, AnUpgradeIsLoadedARefusedOneLeavesTheOldAndARollbackComesBack) {
  add_model("a");
  auto write = [&](const std::string& text) {
    ASSERT_TRUE(os::write_file_atomic(assets_ + "/models/a/weights.gguf", as_bytes(text)));
  };
  write("v1");
  ModelStore store(assets_, [](const std::string& name, const std::string& folder) -> Result<LoadedModel> {
    TIE_TRY(Bytes bytes, os::read_file(folder + "/weights.gguf", 100));
    if (as_text(bytes) == "bad") return fail(Code::kCorrupt, "not a model");
    LoadedModel model;
    model.name = name;
    model.context_tokens = static_cast<uint32_t>(bytes[1] - '0');
    return model;
  });
  ASSERT_TRUE(store.scan());
  store.load();
  auto version = [&] { return store.attach("a", Deadline::in_ms(0)).value()->context_tokens; };
  EXPECT_FALSE(store.refresh()) << "nothing has changed";
  EXPECT_EQ(store.rows()[0].weight_file_reads, 1u);
  write("v2");
  EXPECT_TRUE(store.refresh());
  EXPECT_EQ(version(), 2u);
  write("bad");
  EXPECT_FALSE(store.refresh());
  EXPECT_EQ(version(), 2u);
  EXPECT_NE(store.rows()[0].message.find("refused"), std::string::npos);
  write("v1");
  EXPECT_TRUE(store.refresh());
  EXPECT_EQ(version(), 1u);
  EXPECT_TRUE(store.rows()[0].message.empty());
  std::filesystem::create_directories(assets_ + "/prompts");
  ASSERT_TRUE(os::write_file_atomic(assets_ + "/prompts/p.json", as_bytes("{}")));
  EXPECT_TRUE(store.refresh()) << "prompts are part of what is served";
  std::filesystem::remove_all(assets_ + "/models/a");
  EXPECT_TRUE(store.refresh());
  EXPECT_FALSE(store.attach("a", Deadline::in_ms(0)));
  EXPECT_TRUE(store.rows()[0].removed);
  add_model("a");
  ASSERT_TRUE(os::write_file_atomic(assets_ + "/models/a/weights.gguf", as_bytes("v8")));
  EXPECT_TRUE(store.refresh());
  EXPECT_FALSE(store.rows()[0].removed) << "it came back";
  add_model("b");
  ASSERT_TRUE(os::write_file_atomic(assets_ + "/models/b/weights.gguf", as_bytes("v7")));
  EXPECT_TRUE(store.refresh());
  EXPECT_TRUE(store.attach("b", Deadline::in_ms(0)));
}

// The owner looks by itself, too: an operator's reload that meets it must not hear what was before.
TEST_F(StoreTest, ARefreshReturnsWhenWhatAnotherHasBegunIsOver) {
  add_model("a");
  std::atomic<int> loads{0};
  std::atomic<bool> go{false};
  ModelStore store(assets_, [&](const std::string& name, const std::string& folder) {
    if (++loads == 2) go.wait(false);
    return load_anything(name, folder);
  });
  ASSERT_TRUE(store.scan());
  store.load();
  ASSERT_TRUE(os::write_file_atomic(assets_ + "/models/a/weights.gguf", as_bytes("v2")));
  std::thread first([&] { EXPECT_TRUE(store.refresh()); });
  while (loads != 2) std::this_thread::yield();
  std::atomic<bool> over{false};
  std::thread second([&] {
    EXPECT_FALSE(store.refresh()) << "nothing was left to do";
    over = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(over);
  go = true;
  go.notify_all();
  first.join();
  second.join();
}

// Weights in GPU memory that were changed: both copies at once may be more than it holds.
TEST_F(StoreTest, WhatIsLoadedAgainIsGoneBefore) {
  add_model("a");
  ASSERT_TRUE(os::write_file_atomic(assets_ + "/models/a/weights.gguf", as_bytes("v1")));
  std::weak_ptr<const LoadedModel> first;
  bool was_gone = false;
  int loads = 0;
  ModelStore store(assets_, [&](const std::string& name, const std::string& folder) {
    if (++loads == 2) was_gone = first.expired();
    return load_anything(name, folder);
  });
  ASSERT_TRUE(store.scan());
  store.load();
  first = *store.attach("a", Deadline::in_ms(0));
  store.load_again("a");
  EXPECT_FALSE(store.attach("a", Deadline::in_ms(0)));
  EXPECT_TRUE(store.refresh());
  EXPECT_TRUE(was_gone);
  EXPECT_TRUE(store.attach("a", Deadline::in_ms(0)));
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
