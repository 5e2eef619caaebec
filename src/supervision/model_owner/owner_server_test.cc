#include "supervision/model_owner/owner_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "inference/bones/model.h"
#include "os/framed_message.h"
#include "os/memfd.h"
#include "owner.pb.h"
#include "supervision/model_owner/model_record.h"

namespace tie::owner {
namespace {

std::string test_model() {
  if (const char* path = ::getenv("TIE_TEST_MODEL")) return path;
  return TIE_SOURCE_DIR "/.cache/models/smollm2-135m-instruct.gguf";
}

os::Fd sealed_memory(std::string_view text) {
  os::Fd fd = std::move(os::create_memfd("test", 0).value());
  EXPECT_TRUE(os::write_all(fd.get(), as_bytes(text), Deadline::in_ms(1000)));
  EXPECT_TRUE(os::add_seals(fd.get(), os::kSealAll));
  return fd;
}

Result<LoadedModel> tiny_model(const std::string& name, const std::string& folder) {
  LoadedModel model;
  TIE_TRY(const ModelRecord record, read_model_record(folder));
  model.kv_cache = record.kv_cache;
  model.name = name;
  model.weights = sealed_memory("weights");
  model.tokenizer = sealed_memory("tokenizer");
  model.weights_bytes = 7;
  model.tokenizer_bytes = 9;
  model.context_tokens = 2048;
  return model;
}

class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tie-owner-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    std::filesystem::create_directories(folder_ + "/models/m");
  }
  void TearDown() override {
    if (thread_.joinable()) {
      stop_.second.close();
      thread_.join();
    }
    std::filesystem::remove_all(folder_);
  }
  void start(OwnerServerOptions options = {}, ModelStore::Loader loader = tiny_model) {
    store_ = std::make_unique<ModelStore>(folder_, std::move(loader));
    ASSERT_TRUE(store_->scan());
    store_->load();
    server_ = std::make_unique<OwnerServer>(*store_, std::move(options));
    listener_ = std::move(os::listen_unix(path()).value());
    ASSERT_TRUE(server_->serve_models_in(folder_ + "/weights"));
    stop_ = std::move(os::socket_pair().value());
    thread_ = std::thread([this] { EXPECT_TRUE(server_->run(listener_.get(), stop_.first.get())); });
  }
  std::string path() const { return folder_ + "/owner.sock"; }
  // At the door of a model's runtime, and at the operator's.
  os::Fd connect(const std::string& model = "m") {
    return std::move(
        os::connect_unix(folder_ + "/weights/" + model + "/" + kModelSocketFile, Deadline::in_ms(1000)).value());
  }
  os::Fd connect_operator() { return std::move(os::connect_unix(path(), Deadline::in_ms(1000)).value()); }
  static Result<os::Received<v1::OwnerReply>> ask(int socket, const v1::OwnerRequest& request) {
    TIE_CHECK_OK(os::send_message(socket, request, Deadline::in_ms(2000)));
    return os::receive_message<v1::OwnerReply>(socket, 1 << 20, Deadline::in_ms(2000), 2);
  }
  static v1::OwnerRequest attach(const std::string& model) {
    v1::OwnerRequest request;
    request.mutable_attach()->set_model(model);
    return request;
  }
  static v1::OwnerRequest status() {
    v1::OwnerRequest request;
    request.mutable_status();
    return request;
  }

  std::string folder_;
  std::unique_ptr<ModelStore> store_;
  std::unique_ptr<OwnerServer> server_;
  os::Fd listener_;
  std::pair<os::Fd, os::Fd> stop_;
  std::thread thread_;
};

TEST_F(ServerTest, HandsOutDescriptorsThatNobodyCanWriteOrShrink) {
  start({.release_id = Bytes(32, 7)});
  os::Fd socket = connect();
  auto reply = ask(socket.get(), attach("m"));
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_FALSE(reply->message.has_error());
  EXPECT_EQ(reply->message.model().context_tokens(), 2048u);
  EXPECT_EQ(reply->message.model().release_id(), std::string(32, 7));
  ASSERT_EQ(reply->fds.size(), 2u);
  for (const os::Fd& fd : reply->fds) {
    EXPECT_TRUE(os::require_seals(fd.get(), os::kSealAll));
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
    EXPECT_NE(::ftruncate(fd.get(), 0), 0);
    EXPECT_LT(::pwrite(fd.get(), "x", 1, 0), 0);
  }
}

TEST_F(ServerTest, HandsEachRankItsOwnImage) {
  start({}, [](const std::string& name, const std::string& folder) {
    auto model = tiny_model(name, folder);
    model->grid = {0, 2, 0, 1};
    model->later_ranks.push_back(sealed_memory("other weights"));
    return model;
  });
  os::Fd socket = connect();
  auto request = attach("m");
  auto first = ask(socket.get(), request);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->message.model().tensor_ranks(), 2u);
  EXPECT_EQ(first->message.model().stages(), 1u);
  request.mutable_attach()->set_rank(1);
  request.mutable_attach()->set_rank_count(2);
  auto second = ask(socket.get(), request);
  ASSERT_TRUE(second);
  EXPECT_EQ(os::file_size(first->fds.at(0).get()).value(), 7u);
  EXPECT_EQ(os::file_size(second->fds.at(0).get()).value(), 13u);
  request.mutable_attach()->set_rank(2);
  EXPECT_EQ(ask(socket.get(), request)->message.error().code(), static_cast<int>(Code::kUnsupportedFeature));
  request.mutable_attach()->set_rank(1);
  request.mutable_attach()->set_rank_count(4);
  EXPECT_EQ(ask(socket.get(), request)->message.error().code(), static_cast<int>(Code::kUnsupportedFeature));
}

TEST_F(ServerTest, HandsOnWhatARecordWantsTheKvCacheToBe) {
  ASSERT_TRUE(os::write_file_atomic(folder_ + "/models/m/model.toml", as_bytes("kv_cache = \"f16\"")));
  start();
  os::Fd socket = connect();
  auto first = ask(socket.get(), attach("m"));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->message.model().kv_cache(), "f16");
}

TEST_F(ServerTest, StatusTellsStatesCountersAndTheInstance) {
  start();
  os::Fd socket = connect();
  ASSERT_TRUE(ask(socket.get(), attach("m")));
  os::Fd operators = connect_operator();
  auto reply = ask(operators.get(), status());
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->message.models_size(), 1);
  EXPECT_EQ(reply->message.models(0).state(), "ready");
  EXPECT_EQ(reply->message.models(0).weight_file_reads(), 1u);
  EXPECT_EQ(reply->message.models(0).attaches(), 1u);
  EXPECT_EQ(reply->message.instance_id().size(), 16u);
}

TEST_F(ServerTest, RefusesWhatItDoesNotHave) {
  start();
  os::Fd socket = connect();
  v1::OwnerRequest ranks = attach("m");
  ranks.mutable_attach()->set_rank_count(2);
  auto refused = ask(socket.get(), ranks);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->message.error().code(), v1::UNSUPPORTED_FEATURE);
  auto empty = ask(socket.get(), v1::OwnerRequest());
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->message.has_error());
}

TEST_F(ServerTest, EndsAHostileConnectionAndServesTheNext) {
  start({.message_ms = 200});
  Bytes huge;
  append_u32_be(huge, 0xffffffff);
  os::Fd too_large = connect();
  ASSERT_TRUE(os::write_all(too_large.get(), huge, Deadline::in_ms(1000)));
  EXPECT_FALSE(os::receive_frame(too_large.get(), 1024, 0, Deadline::in_ms(2000)));

  Bytes garbage;
  append_u32_be(garbage, 4);
  append(garbage, "\xff\xff\xff\xff");
  os::Fd not_protobuf = connect();
  ASSERT_TRUE(os::write_all(not_protobuf.get(), garbage, Deadline::in_ms(1000)));
  EXPECT_FALSE(os::receive_frame(not_protobuf.get(), 1024, 0, Deadline::in_ms(2000)));

  os::Fd with_descriptor = connect();
  int fd = with_descriptor.get();
  ASSERT_TRUE(os::send_frame(with_descriptor.get(), as_bytes("x"), std::span(&fd, 1), Deadline::in_ms(1000)));
  EXPECT_FALSE(os::receive_frame(with_descriptor.get(), 1024, 0, Deadline::in_ms(2000)));

  os::Fd half = connect();  // a message that never ends
  Bytes start_of_message;
  append_u32_be(start_of_message, 100);
  ASSERT_TRUE(os::write_all(half.get(), start_of_message, Deadline::in_ms(1000)));
  int64_t begin = monotonic_ms();
  EXPECT_FALSE(os::receive_frame(half.get(), 1024, 0, Deadline::in_ms(5000)));
  EXPECT_LT(monotonic_ms() - begin, 2000);

  os::Fd honest = connect_operator();
  EXPECT_TRUE(ask(honest.get(), status()));
}

TEST_F(ServerTest, AHoarderOfConnectionsLosesItsOldestAndNobodyElseWaits) {
  std::filesystem::create_directories(folder_ + "/models/other");
  start({.max_connections = 4});
  os::Fd early = connect("other"), early_operator = connect_operator();
  ASSERT_TRUE(ask(early.get(), attach("other")));
  ASSERT_TRUE(ask(early_operator.get(), status()));
  std::vector<os::Fd> hoard;
  for (int i = 0; i < 12; ++i) hoard.push_back(connect());
  os::Fd honest = connect();
  EXPECT_TRUE(ask(honest.get(), attach("m")));
  EXPECT_FALSE(os::receive_frame(hoard.front().get(), 1024, 0, Deadline::in_ms(2000)));
  EXPECT_TRUE(ask(early.get(), attach("other"))) << "the door of another model lost nothing";
  EXPECT_TRUE(ask(early_operator.get(), status()));
}

// A model that loads anew keeps whoever asks for it waiting; each such connection has a thread here.
TEST_F(ServerTest, ConnectionsThatAreBeingServedTakeNoMoreThanTheirPlaces) {
  start({.max_connections = 4, .attach_wait_ms = 60'000});
  store_->load_again("m");  // by nobody, for the time being
  std::vector<os::Fd> waiting;
  bool refused = false;
  for (Deadline limit = Deadline::in_ms(20'000); !refused && waiting.size() < 100 && !limit.passed();) {
    os::Fd next = connect();
    refused = os::wait_readable(next.get(), Deadline::in_ms(50)).has_value();
    if (refused) continue;
    ASSERT_TRUE(os::send_message(next.get(), attach("m"), Deadline::in_ms(2000)));
    waiting.push_back(std::move(next));
  }
  EXPECT_TRUE(refused) << waiting.size() << " are being served";
  store_->load();
  int served = 0;
  for (const os::Fd& socket : waiting)
    served += os::receive_message<v1::OwnerReply>(socket.get(), 1 << 20, Deadline::in_ms(20'000), 2).has_value();
  EXPECT_EQ(served, 4);
}

// Whatever a runtime that was taken over asks for, by whatever name: its own model's socket answers for that model.
TEST_F(ServerTest, AModelsDoorAnswersForThatModelAlone) {
  std::filesystem::create_directories(folder_ + "/models/other");
  start();
  for (auto [door, name] : {std::pair{"m", "other"}, {"other", "m"}, {"m", ""}, {"m", "../m"}, {"m", "unknown"}}) {
    os::Fd socket = connect(door);
    std::vector<v1::OwnerRequest> requests(5);
    requests[0].mutable_attach()->set_model(name);
    requests[1].mutable_prepare_prefix()->set_model(name);
    requests[2].mutable_seal_prefix()->set_model(name);
    requests[3].mutable_attach_prefix()->set_model(name);
    requests[4].mutable_reset_prefix()->set_model(name);
    for (const v1::OwnerRequest& request : requests) {
      auto reply = ask(socket.get(), request);
      ASSERT_TRUE(reply);
      EXPECT_EQ(reply->message.error().code(), v1::PERMISSION_DENIED) << door << " asks for " << name;
      EXPECT_TRUE(reply->fds.empty());
    }
    EXPECT_EQ(ask(socket.get(), attach(door))->fds.size(), 2u) << "the control: its own";
  }
  EXPECT_EQ(store_->rows()[0].attaches + store_->rows()[1].attaches, 5u);
}

TEST_F(ServerTest, TheOperatorsDoorHandsOutNothingAndARuntimeGivesNoOrders) {
  start();
  os::Fd operators = connect_operator(), runtime = connect();
  v1::OwnerRequest prefix, reload;
  prefix.mutable_attach_prefix()->set_model("m");
  reload.mutable_reload();
  for (const v1::OwnerRequest& request : {attach("m"), prefix}) {
    auto reply = ask(operators.get(), request);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->message.error().code(), v1::PERMISSION_DENIED);
    EXPECT_TRUE(reply->fds.empty());
  }
  for (const v1::OwnerRequest& request : {status(), reload}) {
    auto reply = ask(runtime.get(), request);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->message.error().code(), v1::PERMISSION_DENIED);
    EXPECT_EQ(reply->message.models_size(), 0);
    EXPECT_EQ(ask(operators.get(), request)->message.models_size(), 1) << "the control";
  }
}

TEST_F(ServerTest, AModelThatJoinsGetsADoorOfItsOwn) {
  start();
  std::filesystem::create_directories(folder_ + "/models/late");
  const std::string at = folder_ + "/weights/late/" + kModelSocketFile;
  ASSERT_FALSE(std::filesystem::exists(at));
  ASSERT_TRUE(store_->refresh());
  Deadline soon = Deadline::in_ms(20'000);
  while (!std::filesystem::exists(at) && !soon.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  os::Fd socket = connect("late");
  EXPECT_EQ(ask(socket.get(), attach("late"))->fds.size(), 2u);
  EXPECT_EQ(ask(socket.get(), attach("m"))->message.error().code(), v1::PERMISSION_DENIED);
}

TEST_F(ServerTest, PacksARealModelThatBonesCanAttach) {
  if (!std::filesystem::exists(test_model())) GTEST_SKIP() << "no test model at " << test_model();
  std::string at = folder_ + "/models/m/";
  std::filesystem::create_symlink(std::filesystem::absolute(test_model()), at + kWeightsFile);
  ASSERT_TRUE(os::write_file_atomic(at + kTokenizerFile, as_bytes("an image")));
  start({}, [](const std::string& name, const std::string& folder) {
    bones::ThreadPool pool({.n_threads = 2});
    return load_model(name, folder, &pool);
  });
  os::Fd socket = connect();
  auto reply = ask(socket.get(), attach("m"));
  ASSERT_TRUE(reply) << reply.error().message;
  ASSERT_EQ(reply->fds.size(), 2u) << reply->message.error().message();
  EXPECT_EQ(as_text(ByteView(reinterpret_cast<const uint8_t*>(reply->message.model().model_id().data()), 32)),
            as_text(ByteView(*model_id_of_folder(folder_ + "/models/m"))));
  auto mapping = os::Mapping::read_only(reply->fds[0].get());
  ASSERT_TRUE(mapping);
  bones::ThreadPool pool({.n_threads = 1});
  auto model = bones::Model::attach(mapping->bytes(), {.pool = &pool});
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->config().context_length, reply->message.model().context_tokens());
  RecordProperty("load_ms", std::to_string(store_->rows()[0].loaded->load_ms));
  std::printf("packed in %lld ms\n", static_cast<long long>(store_->rows()[0].loaded->load_ms));
}

}  // namespace
}  // namespace tie::owner
