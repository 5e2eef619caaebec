// The call against a server of nghttp2 that says what a test wants, byte by byte where that matters. That a real gRPC
// server understands it is app_test's part.
#include "request/cloud_app/grpc_call.h"

#include <gtest/gtest.h>
#include <nghttp2/nghttp2.h>

#include <map>

#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

std::string prefixed(const std::string& message, uint8_t flag = 0) {
  Bytes out{flag};
  append_u32_be(out, static_cast<uint32_t>(message.size()));
  return to_string(out) + message;
}

class Server {
 public:
  Server() {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame*, const uint8_t* name, size_t n, const uint8_t* value,
                      size_t v, uint8_t, void* self) {
          static_cast<Server*>(self)->headers[std::string(reinterpret_cast<const char*>(name), n)] =
              std::string(reinterpret_cast<const char*>(value), v);
          return 0;
        });
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks, [](nghttp2_session*, uint8_t, int32_t, const uint8_t* data, size_t n, void* self) {
          static_cast<Server*>(self)->body.append(reinterpret_cast<const char*>(data), n);
          return 0;
        });
    nghttp2_session_callbacks_set_on_frame_recv_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, void* self) {
          auto& server = *static_cast<Server*>(self);
          if (frame->hd.stream_id == 1 && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) server.complete = true;
          if (frame->hd.type == NGHTTP2_RST_STREAM) server.reset_with = frame->rst_stream.error_code;
          return 0;
        });
    nghttp2_session_server_new(&session_, callbacks, this);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, nullptr, 0);
  }
  ~Server() { nghttp2_session_del(session_); }

  void hear(ByteView bytes) { ASSERT_GE(nghttp2_session_mem_recv(session_, bytes.data(), bytes.size()), 0); }
  std::string words() {
    std::string out;
    const uint8_t* data = nullptr;
    ssize_t n = 0;
    while ((n = nghttp2_session_mem_send(session_, &data)) > 0)
      out.append(reinterpret_cast<const char*>(data), static_cast<size_t>(n));
    EXPECT_EQ(n, 0) << nghttp2_strerror(static_cast<int>(n));
    return out;
  }

  // The whole answer: status line, `data`, and `grpc_status` as a trailer unless it is empty.
  void answer(const std::string& data, const std::string& grpc_status, const std::string& http_status = "200") {
    data_ = data;
    status_ = grpc_status;
    auto headers = nv(":status", http_status);
    nghttp2_data_provider provider{
        .source = {.ptr = this},
        .read_callback = [](nghttp2_session* session, int32_t stream, uint8_t* to, size_t most, uint32_t* flags,
                            nghttp2_data_source* source, void*) -> ssize_t {
          auto& self = *static_cast<Server*>(source->ptr);
          size_t size = std::min(most, self.data_.size());
          std::copy_n(self.data_.begin(), size, to);
          self.data_.erase(0, size);
          if (!self.data_.empty()) return static_cast<ssize_t>(size);
          *flags |= NGHTTP2_DATA_FLAG_EOF;
          if (self.status_.empty()) return static_cast<ssize_t>(size);
          *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
          auto trailer = nv("grpc-status", self.status_);
          nghttp2_submit_trailer(session, stream, &trailer, 1);
          return static_cast<ssize_t>(size);
        }};
    ASSERT_EQ(nghttp2_submit_response(session_, 1, &headers, 1, &provider), 0);
  }
  void go_away() { nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, 0, NGHTTP2_NO_ERROR, nullptr, 0); }
  void reset() { nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, 1, NGHTTP2_INTERNAL_ERROR); }

  std::map<std::string, std::string> headers;
  std::string body;
  bool complete = false;
  std::optional<uint32_t> reset_with;

 private:
  // Of strings that outlive it.
  static nghttp2_nv nv(std::string_view name, std::string_view value) {
    auto bytes = [](std::string_view s) { return reinterpret_cast<uint8_t*>(const_cast<char*>(s.data())); };
    return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
  }
  nghttp2_session* session_ = nullptr;
  std::string data_, status_;
};

struct GrpcCallTest : ::testing::Test {
  Server server;
  std::unique_ptr<GrpcCall> call = std::move(*GrpcCall::create());

  bool say_all() {
    bool said = false;
    for (ByteView out; !(out = call->output()).empty(); said = true) {
      ByteView piece = out.first(std::min<size_t>(out.size(), 1000));  // a socket may take any part
      server.hear(piece);
      call->sent(piece.size());
    }
    return said;
  }
  // Until nobody has anything to say; true while the call understands.
  bool talk() {
    for (;;) {
      bool said = say_all();
      std::string words = server.words();
      if (!words.empty() && !call->feed(as_bytes(words))) return false;
      if (!said && words.empty()) return true;
    }
  }
  void ask(std::string message) {
    ASSERT_TRUE(call->start("/a.Service/Method", std::move(message), 1500));
    ASSERT_TRUE(talk());
  }
};

TEST_F(GrpcCallTest, SaysWhatGrpcWantsToHear) {
  ask("question");
  EXPECT_EQ(server.headers[":method"], "POST");
  EXPECT_EQ(server.headers[":path"], "/a.Service/Method");
  EXPECT_EQ(server.headers["content-type"], "application/grpc");
  EXPECT_EQ(server.headers["te"], "trailers");
  EXPECT_EQ(server.headers["grpc-timeout"], "1500m");
  EXPECT_EQ(server.body, prefixed("question"));
  EXPECT_TRUE(server.complete);
}

TEST_F(GrpcCallTest, AMessageBeyondTheFirstWindowArrivesWhole) {
  std::string large(3 << 20, 'q');
  for (size_t i = 0; i < large.size(); i += 997) large[i] = static_cast<char>(i);
  ask(large);
  EXPECT_EQ(server.body, prefixed(large));
}

TEST_F(GrpcCallTest, GivesMessagesInOrderAndThenTheStatus) {
  ask("question");
  EXPECT_FALSE(call->status());
  std::string large(kStreamWindowBytes / 2 + 5, 'l');
  server.answer(prefixed("one") + prefixed("") + prefixed(large), "0");
  ASSERT_TRUE(talk());
  EXPECT_EQ(call->next_message()->value(), "one");
  EXPECT_EQ(call->next_message()->value(), "");
  EXPECT_EQ(call->next_message()->value(), large);
  EXPECT_FALSE(call->next_message()->has_value());
  EXPECT_EQ(call->status(), 0);
}

TEST_F(GrpcCallTest, UnderstandsAnAnswerCutAnywhere) {
  ask("question");
  server.answer(prefixed("one") + prefixed("two"), "8");
  std::vector<std::string> got;
  for (char c : server.words()) {
    ASSERT_TRUE(call->feed(as_bytes(std::string_view(&c, 1))));
    while (auto message = *call->next_message()) got.push_back(*message);
  }
  EXPECT_EQ(got, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(call->status(), 8);
}

// Each piece that arrives ends inside a message, so that the buffer is never empty.
TEST_F(GrpcCallTest, WhatHasBeenTakenIsNotKeptHoweverTheAnswerIsCut) {
  ask("question");
  const std::string message(1000, 'm');
  std::string answer;
  for (int i = 0; i < 500; ++i) answer += prefixed(message);
  server.answer(answer, "0");
  size_t got = 0, most = 0;
  auto take = [&] {
    while (auto next = *call->next_message()) {
      EXPECT_EQ(*next, message);
      ++got;
    }
    most = std::max(most, call->buffered());
  };
  for (std::string words; !(words = server.words()).empty(); (void)say_all()) {
    for (size_t at = 0; at < words.size(); at += 777) {
      ASSERT_TRUE(call->feed(as_bytes(std::string_view(words).substr(at, 777))));
      take();
    }
  }
  EXPECT_EQ(got, 500u);
  EXPECT_LT(most, (64u << 10) + 3000u);
}

TEST_F(GrpcCallTest, AnEndWithoutAStatusIsOneWithout) {
  ask("question");
  server.answer(prefixed("one"), "");
  ASSERT_TRUE(talk());
  EXPECT_EQ(call->status(), GrpcCall::kNoStatus);
}

TEST_F(GrpcCallTest, AResetIsAnEndWithoutAStatus) {
  ask("question");
  server.reset();
  ASSERT_TRUE(talk());
  EXPECT_EQ(call->status(), GrpcCall::kNoStatus);
}

TEST_F(GrpcCallTest, AnotherHttpStatusIsNoAnswerWhateverGrpcSays) {
  ask("question");
  server.answer("", "0", "503");
  ASSERT_TRUE(talk());
  EXPECT_EQ(call->status(), GrpcCall::kNoStatus);
}

TEST_F(GrpcCallTest, AStatusThatIsNoNumberIsNone) {
  for (const char* word : {"0x", "-3", "99999999999999999999", "ok"}) {
    Server other;
    call = std::move(*GrpcCall::create());
    ASSERT_TRUE(call->start("/a.Service/Method", "q", 1500));
    for (ByteView out; !(out = call->output()).empty(); call->sent(out.size())) other.hear(out);
    other.answer("", word);
    ASSERT_TRUE(call->feed(as_bytes(other.words())));
    EXPECT_EQ(call->status(), GrpcCall::kNoStatus) << word;
  }
}

TEST_F(GrpcCallTest, CancellingResetsTheStream) {
  ask("question");
  call->cancel();
  ASSERT_TRUE(talk());
  EXPECT_EQ(server.reset_with, static_cast<uint32_t>(NGHTTP2_CANCEL));
}

TEST_F(GrpcCallTest, RefusesCompressedAndOversizedMessages) {
  ask("question");
  server.answer(prefixed("zipped", 1), "0");
  ASSERT_TRUE(talk());
  EXPECT_FALSE(call->next_message());
  Server other;
  auto second = std::move(*GrpcCall::create());
  ASSERT_TRUE(second->start("/a.Service/Method", "q", 1500));
  for (ByteView out; !(out = second->output()).empty(); second->sent(out.size())) other.hear(out);
  Bytes over{0};
  append_u32_be(over, kMaxRuntimeMessageBytes + 1);
  other.answer(to_string(over), "0");
  ASSERT_TRUE(second->feed(as_bytes(other.words())));
  EXPECT_FALSE(second->next_message()) << "before the message has come";
  EXPECT_FALSE(second->start("/a.Service/Method", "again", 1500)) << "one call a connection";
}

TEST_F(GrpcCallTest, NoticesAGoodbyeWithoutACall) {
  ASSERT_TRUE(talk());
  EXPECT_FALSE(call->going_away());
  server.go_away();
  ASSERT_TRUE(talk());
  EXPECT_TRUE(call->going_away());
}

TEST_F(GrpcCallTest, WhatIsNotHttp2IsAnError) {
  EXPECT_FALSE(call->status());
  bool understood = call->feed(as_bytes("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")).has_value();
  for (ByteView out; !(out = call->output()).empty();) call->sent(out.size());
  EXPECT_TRUE(!understood || call->status() == GrpcCall::kNoStatus);
}

}  // namespace
}  // namespace tie::request::app
