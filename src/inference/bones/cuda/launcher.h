// Loads the kernels and puts work on a stream: launches by name, copies, captured graphs. Threads: one at a time.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "inference/bones/cuda/driver.h"
#include "inference/bones/kernels/cuda/weight_formats.h"

namespace tie::bones::cuda {

// Writes to GPU memory that have arrived when they return. The driver's own calls for it may return sooner, and its
// default stream, on which they run, does not hold up the streams of launchers: a kernel could come first.
Result<void> write_now(const Driver& driver, DevicePtr to, const void* from, size_t bytes);
Result<void> fill_now(const Driver& driver, DevicePtr at, uint8_t value, size_t bytes);

struct GridSize {
  uint32_t x = 1, y = 1, z = 1;
};

// A captured run of launches.
class Graph {
 public:
  Graph() = default;
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();
  bool captured() const { return executable_ != nullptr; }

 private:
  friend class Launcher;
  std::shared_ptr<Driver> driver_;
  void* executable_ = nullptr;
};

class Launcher {
 public:
  // kIo when the driver refuses the kernels (made for another GPU).
  static Result<std::unique_ptr<Launcher>> create(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // `args` is copied by the driver. kUnsupportedFeature: no such kernel.
  template <typename Args>
  Result<void> launch(const std::string& name, const Args& args, GridSize grid, uint32_t threads,
                      uint32_t shared_bytes) {
    return launch_bytes(name, const_cast<Args*>(&args), grid, threads, shared_bytes);
  }
  // The kernel `name` for weights of a format.
  template <typename Args>
  Result<void> launch_for(const std::string& name, Format format, const Args& args, GridSize grid, uint32_t threads,
                          uint32_t shared_bytes) {
    static constexpr const char* kSuffix[] = {"_f32", "_f16", "_bf16", "_q8", "_q4", "_q5", "_q6"};
    return launch(name + kSuffix[static_cast<uint32_t>(format)], args, grid, threads, shared_bytes);
  }
  Result<void> copy_in(DevicePtr to, const void* from, size_t bytes);
  Result<void> copy_out(void* to, DevicePtr from, size_t bytes);
  Result<void> wait();

  // Records what `work` launches instead of running it.
  Result<Graph> capture(const std::function<Result<void>()>& work);
  Result<void> replay(const Graph& graph);

  // Runs `work` on a stream of its own and waits for that alone.
  Result<void> beside(const std::function<Result<void>(Launcher&)>& work);

  void* stream() const { return stream_; }

 private:
  Launcher() = default;
  Result<void> launch_bytes(const std::string& name, void* args, GridSize grid, uint32_t threads,
                            uint32_t shared_bytes);
  Result<void*> function(const std::string& name, uint32_t shared_bytes);

  struct Function {
    void* handle = nullptr;
    uint32_t shared_limit = 48 << 10;
  };
  std::shared_ptr<Driver> driver_;
  void *module_ = nullptr, *stream_ = nullptr;
  std::map<std::string, Function> functions_;
  std::unique_ptr<Launcher> beside_;
};

}  // namespace tie::bones::cuda
