#include "inference/bones/cuda/launcher.h"

#include <utility>

namespace tie::bones::cuda {
namespace {

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr int kCaptureThreadLocal = 1;
constexpr int kMaxDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

// What `work` puts on a stream of its own is done.
template <typename Work>
Result<void> now(const Driver& driver, const char* doing, Work work) {
  void* stream = nullptr;
  TIE_CHECK_OK(driver.check(driver.stream_create(&stream, kNonBlocking), "making a stream"));
  int status = work(stream);
  if (status == 0) status = driver.stream_sync(stream);
  driver.stream_destroy(stream);
  return driver.check(status, doing);
}

}  // namespace

Result<void> write_now(const Driver& driver, DevicePtr to, const void* from, size_t bytes) {
  return now(driver, "writing to GPU memory",
             [&](void* stream) { return driver.copy_in_async(to, from, bytes, stream); });
}

Result<void> fill_now(const Driver& driver, DevicePtr at, uint8_t value, size_t bytes) {
  if (bytes == 0) return {};
  return now(driver, "filling GPU memory",
             [&](void* stream) { return driver.mem_set_async(at, value, bytes, stream); });
}

Graph::Graph(Graph&& other) noexcept {
  *this = std::move(other);
}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(executable_, other.executable_);
  return *this;
}
Graph::~Graph() {
  if (executable_) driver_->graph_exec_destroy(executable_);
}

Result<std::unique_ptr<Launcher>> Launcher::create(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels) {
  std::unique_ptr<Launcher> out(new Launcher);
  TIE_CHECK_OK(driver->check(driver->module_load(&out->module_, kernels.data()), "loading the kernels"));
  TIE_CHECK_OK(driver->check(driver->stream_create(&out->stream_, kNonBlocking), "making a stream"));
  out->driver_ = std::move(driver);
  return out;
}

Launcher::~Launcher() {
  if (stream_ && driver_) driver_->stream_destroy(stream_);
}

Result<void*> Launcher::function(const std::string& name, uint32_t shared_bytes) {
  Function& f = functions_[name];
  if (!f.handle && driver_->module_function(&f.handle, module_, name.c_str()) != 0)
    return fail(Code::kUnsupportedFeature, "the kernels have no " + name);
  if (shared_bytes > f.shared_limit) {
    TIE_CHECK_OK(
        driver_->check(driver_->function_attribute(f.handle, kMaxDynamicShared, static_cast<int>(shared_bytes)),
                       "asking for shared memory"));
    f.shared_limit = shared_bytes;
  }
  return f.handle;
}

Result<void> Launcher::launch_bytes(const std::string& name, void* args, GridSize grid, uint32_t threads,
                                    uint32_t shared_bytes) {
  TIE_TRY(void* handle, function(name, shared_bytes));
  void* parameters[] = {args};
  return driver_->check(
      driver_->launch(handle, grid.x, grid.y, grid.z, threads, 1, 1, shared_bytes, stream_, parameters, nullptr),
      name.c_str());
}

Result<void> Launcher::copy_in(DevicePtr to, const void* from, size_t bytes) {
  return driver_->check(driver_->copy_in_async(to, from, bytes, stream_), "copying to the GPU");
}

Result<void> Launcher::copy_out(void* to, DevicePtr from, size_t bytes) {
  return driver_->check(driver_->copy_out_async(to, from, bytes, stream_), "copying from the GPU");
}

Result<void> Launcher::wait() {
  return driver_->check(driver_->stream_sync(stream_), "waiting for the GPU");
}

Result<Graph> Launcher::capture(const std::function<Result<void>()>& work) {
  TIE_CHECK_OK(driver_->check(driver_->capture_begin(stream_, kCaptureThreadLocal), "beginning a graph"));
  auto worked = work();
  void* graph = nullptr;
  auto ended = driver_->check(driver_->capture_end(stream_, &graph), "ending a graph");
  if (!worked || !ended) {
    if (graph) driver_->graph_destroy(graph);
    return std::unexpected(std::move(worked ? ended.error() : worked.error()));
  }
  Graph out;
  out.driver_ = driver_;
  auto made = driver_->check(driver_->graph_instantiate(&out.executable_, graph, 0), "making a graph");
  driver_->graph_destroy(graph);
  if (!made) return std::unexpected(std::move(made.error()));
  return out;
}

Result<void> Launcher::replay(const Graph& graph) {
  return driver_->check(driver_->graph_launch(graph.executable_, stream_), "running a graph");
}

Result<void> Launcher::beside(const std::function<Result<void>(Launcher&)>& work) {
  if (!beside_) {
    std::unique_ptr<Launcher> other(new Launcher);
    other->driver_ = driver_;
    other->module_ = module_;
    TIE_CHECK_OK(driver_->check(driver_->stream_create(&other->stream_, kNonBlocking), "making a stream"));
    beside_ = std::move(other);
  }
  TIE_CHECK_OK(work(*beside_));
  return beside_->wait();
}

}  // namespace tie::bones::cuda
