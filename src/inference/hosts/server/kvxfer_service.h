// kvxfer.sock of afm-runtime: takes buffers of KV blocks from the app of a request and gives out buffers that the
// engine fills when the request ends. A buffer is named by a handle of 128 random bits that its app chose: the handle
// is the capability, works once and dies with the connection that brought it. Everything an offered buffer says is
// checked here against this runtime's own model, release, layout and sizes, before any request can name it. Hostile
// input: every message and every buffer. Threads: its own for the socket; take_*() any; the buffers themselves are the
// engine's. Secrets: KV of users, in memory that only the two processes share; what we wrote is zeroed when the
// connection ends. Source: spec, "Moving the KV cache between processes".
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cache/kvxfer/kv_buffer.h"
#include "inference/engine/kv_transfer.h"

namespace tie::v1 {
class KvxferRequest;
class KvxferReply;
}  // namespace tie::v1

namespace tie::runtime_host {

class KvxferService {
 public:
  // `own`: what this runtime's blocks are; block_count: the most that one sequence has. `listener`: kvxfer.sock, which
  // may listen before there is a model.
  static Result<std::unique_ptr<KvxferService>> start(os::Fd listener, const cache::KvDescription& own);
  ~KvxferService();

  // The buffer of that handle, once; null: there is none, or it was refused.
  std::shared_ptr<engine::KvImport> take_import(const std::string& handle);
  std::shared_ptr<engine::KvExport> take_export(const std::string& handle);

  // Waits until no app is still reading a buffer that was filled for it; false at the deadline.
  bool wait_quiet(Deadline deadline) const;
  uint64_t refused_imports() const { return refused_imports_; }

 private:
  class ImportBuffer;
  class ExportBuffer;
  struct Connection;
  KvxferService(os::Fd listener, const cache::KvDescription& own, os::Fd stop_reader, os::Fd stop_writer);
  void run();
  bool serve_one(Connection& connection);
  Result<void> act(Connection& connection, const v1::KvxferRequest& request, std::vector<os::Fd>& fds,
                   v1::KvxferReply& reply, int& reply_fd);
  Result<void> offer_import(Connection& connection, const std::string& handle, std::vector<os::Fd>& fds);
  Result<void> request_export(Connection& connection, const v1::KvxferRequest& request, int& reply_fd);
  void forget(Connection& connection);
  void look_after(std::vector<std::unique_ptr<Connection>>& connections);

  os::Fd listener_, stop_reader_, stop_writer_;
  const cache::KvDescription own_;
  std::atomic<uint64_t> refused_imports_{0};
  std::atomic<uint32_t> open_exports_{0};  // taken by a request, their connection still there
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<ImportBuffer>> imports_;  // by handle, until taken
  std::map<std::string, std::shared_ptr<ExportBuffer>> exports_;
  std::thread thread_;
};

}  // namespace tie::runtime_host
