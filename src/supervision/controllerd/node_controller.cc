#include "supervision/controllerd/node_controller.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include "os/log.h"

namespace tie::controller {
namespace {

constexpr size_t kMaxQueuedEvents = 4096;
constexpr int64_t kShortestWaitMs = 5;

}  // namespace

struct NodeController::State {
  State(CoreOptions core, int64_t now) : core(core, now) {}
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  std::deque<Event> queue;
  uint64_t posted = 0, handled = 0;
  uint64_t version = 1;
  bool stopping = false;
  bool was_ready = false;
  Core core;
  std::thread loop;
  std::atomic<uint64_t> newest_advertise{0};

  std::unique_ptr<Watchdog> dog = std::make_unique<Watchdog>();
  std::unique_ptr<Registrar> registrar;
  std::unique_ptr<GpuWatcher> gpu;
  std::unique_ptr<OwnerWatcher> owner;
  std::vector<std::unique_ptr<ProbeWatcher>> probes;
  std::vector<std::unique_ptr<Worker>> recyclers;  // one per probe
  Worker advertiser, prewarmer;

  std::vector<PeerThread*> threads() {
    std::vector<PeerThread*> out{registrar.get(), gpu.get(), owner.get(), &advertiser, &prewarmer};
    for (auto& probe : probes) out.push_back(probe.get());
    for (auto& recycler : recyclers) out.push_back(recycler.get());
    return out;
  }
};

NodeController::NodeController(NodeOptions options) : options_(std::move(options)) {
  options_.core.runtimes = options_.probes.size();
  state_ = std::make_unique<State>(options_.core, monotonic_ms());
  Sink sink = [this](Event event) { post(std::move(event)); };
  std::vector<std::string> models;
  for (const ProbeTarget& probe : options_.probes) models.push_back(probe.model);
  state_->registrar = std::make_unique<Registrar>(options_.cloudboard_socket, options_.node_id, models, options_.timing,
                                                  *state_->dog, sink);
  state_->gpu = std::make_unique<GpuWatcher>(options_.gpuhealth_socket, options_.timing, *state_->dog, sink);
  state_->owner = std::make_unique<OwnerWatcher>(options_.owner_socket, models, options_.timing, sink);
  for (size_t i = 0; i < options_.probes.size(); ++i) {
    state_->probes.push_back(
        std::make_unique<ProbeWatcher>(i, options_.probes[i].socket, options_.timing, *state_->dog, sink));
    state_->recyclers.push_back(std::make_unique<Worker>());
  }
}

NodeController::~NodeController() {
  stop();
}

void NodeController::start() {
  state_->loop = std::thread([this] { loop(); });
  for (PeerThread* thread : state_->threads()) thread->start();
}

void NodeController::stop() {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->stopping) return;
    state_->stopping = true;
    state_->changed.notify_all();
  }
  for (PeerThread* thread : state_->threads()) thread->stop();
  state_->registrar->cancel_advertise();
  state_->dog->stop();
  for (PeerThread* thread : state_->threads()) thread->join();
  if (state_->loop.joinable()) state_->loop.join();
}

void NodeController::post(Event event) {
  std::lock_guard lock(state_->mutex);
  // Reports repeat; dropping the oldest loses nothing that will not be said again.
  if (state_->queue.size() >= kMaxQueuedEvents) {
    state_->queue.pop_front();
    ++state_->handled;
  }
  state_->queue.push_back(std::move(event));
  ++state_->posted;
  state_->changed.notify_all();
}

void NodeController::post_and_wait(Event event, Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  state_->queue.push_back(std::move(event));
  uint64_t mine = ++state_->posted;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, std::chrono::milliseconds(deadline.remaining_ms()),
                           [&] { return state_->stopping || state_->handled >= mine; });
}

bool NodeController::refresh_load(int64_t limit_ms) {
  auto load = state_->registrar->ask_load(limit_ms);
  if (load) post_and_wait(*load, Deadline::in_ms(limit_ms));
  return load.has_value();
}

Core NodeController::snapshot() const {
  std::lock_guard lock(state_->mutex);
  return state_->core;
}

std::pair<Core, uint64_t> NodeController::snapshot_after(uint64_t seen_version, Deadline deadline) const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, std::chrono::milliseconds(deadline.remaining_ms()),
                           [&] { return state_->stopping || state_->version != seen_version; });
  return {state_->core, state_->version};
}

void NodeController::loop() {
  std::unique_lock lock(state_->mutex);
  while (!state_->stopping) {
    int64_t wait_ms = std::max(state_->core.next_wake_ms() - monotonic_ms(), kShortestWaitMs);
    state_->changed.wait_for(lock, std::chrono::milliseconds(wait_ms),
                             [this] { return state_->stopping || !state_->queue.empty(); });
    if (state_->stopping) return;
    Event event = Tick{};
    bool from_queue = !state_->queue.empty();
    if (from_queue) {
      event = std::move(state_->queue.front());
      state_->queue.pop_front();
    }
    Phase before = state_->core.phase();
    std::vector<Command> commands = state_->core.handle(event, monotonic_ms());
    if (from_queue) ++state_->handled;
    ++state_->version;
    state_->changed.notify_all();
    note_phase(before);
    for (const Command& command : commands) carry_out(command);
  }
}

void NodeController::note_phase(Phase before) {
  Phase now = state_->core.phase();
  if (now == before) return;
  TIE_LOG("tie-controllerd", "{} -> {}", os::LogWord(phase_name(before)), os::LogWord(phase_name(now)));
  if (now == Phase::kReady && before == Phase::kRecycling)
    TIE_LOG("tie-controllerd", "recycle {} took {} ms", state_->core.recycle_count(), state_->core.last_recycle_ms());
  if (now != Phase::kReady || state_->was_ready) return;
  state_->was_ready = true;
  options_.on_first_ready();
}

// Called with the lock held: only hands work to other threads.
void NodeController::carry_out(const Command& command) {
  if (const auto* advertise = std::get_if<Advertise>(&command)) {
    state_->newest_advertise = advertise->op;
    state_->registrar->cancel_advertise();
    state_->advertiser.post([this, job = *advertise] {
      // The newest state is the only one worth saying.
      if (job.op == state_->newest_advertise) state_->registrar->advertise(job);
    });
  } else if (const auto* recycle = std::get_if<SendRecycle>(&command)) {
    state_->recyclers[recycle->index]->post([this, job = *recycle] {
      bool ok = ask_recycle(options_.probes[job.index].socket, job, options_.timing);
      post(RecycleAnswered{job.op, job.index, ok});
    });
  } else if (const auto* warmup = std::get_if<SendWarmup>(&command)) {
    state_->recyclers[warmup->index]->post([this, job = *warmup] {
      post(WarmupAnswered{job.op, job.index, ask_warmup(options_.probes[job.index].socket, options_.timing)});
    });
  } else if (const auto* prewarm = std::get_if<RestartPrewarmed>(&command)) {
    state_->prewarmer.post([this, op = prewarm->op] {
      post(PrewarmedRestarted{op, state_->registrar->restart_prewarmed(options_.core.prewarm_limit_ms)});
    });
  }
}

}  // namespace tie::controller
