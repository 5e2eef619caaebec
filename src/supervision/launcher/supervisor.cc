#include "supervision/launcher/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "os/unix_socket.h"

namespace tie::launcher {
namespace {

const char* state_name(int state) {
  constexpr const char* kNames[] = {"waiting", "starting", "ready", "restarting", "stopped"};
  return kNames[state];
}

std::string exit_text(int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) < 128) return fmt::format("exited with code {}", WEXITSTATUS(status));
  // bubblewrap tells a signal as 128 + its number.
  int number = WIFEXITED(status) ? WEXITSTATUS(status) - 128 : WTERMSIG(status);
  return fmt::format("was ended by signal {}", number);
}

Result<os::Fd> child_signal_fd() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  if (int error = ::pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) return fail_errno("blocking SIGCHLD", error);
  os::Fd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return fail_errno("signalfd", errno);
  return fd;
}

}  // namespace

Supervisor::Supervisor(os::SandboxLauncher& launcher, std::vector<Unit> units, SupervisorOptions options)
    : launcher_(launcher), options_(std::move(options)) {
  for (Unit& unit : units) {
    std::string log_path = options_.run + "/log/" + unit.name + ".log";
    std::vector<std::string> formats = unit.log_formats;
    slots_.push_back(Slot{.unit = std::move(unit), .log = LogFile(std::move(log_path), std::move(formats))});
  }
}

Supervisor::~Supervisor() {
  for (Slot& slot : slots_)
    for (Instance& instance : slot.instances) instance.signal(SIGKILL);
}

Supervisor::Slot* Supervisor::find(const std::string& name) {
  for (Slot& slot : slots_)
    if (slot.unit.name == name) return &slot;
  return nullptr;
}

Result<void> Supervisor::open_listeners() {
  for (Slot& slot : slots_) {
    if (slot.unit.life != Life::kPerRequest) continue;
    TIE_TRY(slot.listener, os::listen_unix(slot.unit.listen_path, static_cast<int>(options_.max_instances), 0600));
    slot.state = State::kReady;
    slot.log.set_raw(options_.raw_logs);
  }
  return {};
}

Result<void> Supervisor::run(int stop_fd) {
  began_ms_ = monotonic_ms();
  TIE_TRY(child_signals_, child_signal_fd());
  TIE_CHECK_OK(open_listeners());
  Deadline startup = Deadline::in_ms(options_.startup_timeout_ms);
  changed();
  while (!stop_requested_ && failure_.empty()) {
    if (auto started = start_due_units(); !started) failure_ = started.error().message;
    if (node_ready_ms_ == 0 && startup.passed()) {
      failure_ = "not ready in time:";
      for (const Slot& slot : slots_)
        if (slot.state != State::kReady)
          failure_ += fmt::format(" {} is {}{};", slot.unit.name, state_name(static_cast<int>(slot.state)),
                                  slot.log.last_lines().empty() ? "" : " (" + slot.log.last_lines() + ")");
    }
    if (failure_.empty()) poll_once(stop_fd);
  }
  stop_all();
  if (!failure_.empty()) return fail(Code::kNotReady, failure_);
  return {};
}

Result<void> Supervisor::start_due_units() {
  for (Slot& slot : slots_) {
    bool due = slot.state == State::kWaiting || (slot.state == State::kBackoff && monotonic_ms() >= slot.next_start_ms);
    if (!due) continue;
    // Order matters only for the first start: a daemon that comes back finds the others as they are.
    bool may_start =
        slot.was_ready || std::all_of(slot.unit.after.begin(), slot.unit.after.end(), [&](const std::string& name) {
          Slot* other = find(name);
          return other == nullptr || other->was_ready;
        });
    if (may_start) TIE_CHECK_OK(start_daemon(slot));
  }
  return {};
}

Result<void> Supervisor::start_daemon(Slot& slot) {
  if (slot.unit.before_start) {
    if (auto prepared = slot.unit.before_start(); !prepared) slot.log.note("launcher: " + prepared.error().message);
  }
  auto instance = start_instance(launcher_, slot.unit.profile, -1, true);
  if (!instance) return fail(instance.error().code, slot.unit.name + ": " + instance.error().message);
  slot.instances.push_back(std::move(*instance));
  slot.state = State::kStarting;
  ++slot.starts;
  changed();
  return {};
}

void Supervisor::accept_connection(Slot& slot) {
  auto connection = os::accept_unix(slot.listener.get(), Deadline::in_ms(0));
  if (!connection) return;
  auto instance = start_instance(launcher_, slot.unit.profile, connection->get(), false);
  if (!instance) {
    // The connection closes, which tells the other side at once.
    slot.log.note("launcher: starting an instance failed: " + instance.error().message);
    return;
  }
  ++slot.starts;
  slot.instances.push_back(std::move(*instance));
}

int Supervisor::poll_timeout_ms() const {
  int64_t wait = 1000;
  for (const Slot& slot : slots_)
    if (slot.state == State::kBackoff) wait = std::min(wait, slot.next_start_ms - monotonic_ms());
  return static_cast<int>(std::max<int64_t>(wait, 0));
}

void Supervisor::poll_once(int stop_fd) {
  struct Watch {
    Slot* slot;
    Instance* instance;
    int what;  // 0 listener, 1 ready, 2 stderr
  };
  std::vector<pollfd> fds = {{child_signals_.get(), POLLIN, 0}, {stop_fd, POLLIN, 0}};
  std::vector<Watch> watches(2);
  auto watch = [&](int fd, Watch w) {
    fds.push_back({fd, POLLIN, 0});
    watches.push_back(w);
  };
  for (Slot& slot : slots_) {
    // At the limit connections wait in the listener's queue.
    if (slot.listener && slot.instances.size() < options_.max_instances)
      watch(slot.listener.get(), {&slot, nullptr, 0});
    for (Instance& instance : slot.instances) {
      if (instance.ready) watch(instance.ready.get(), {&slot, &instance, 1});
      if (instance.standard_error) watch(instance.standard_error.get(), {&slot, &instance, 2});
    }
  }
  if (::poll(fds.data(), fds.size(), poll_timeout_ms()) <= 0) return;
  if (fds[1].revents != 0) stop_requested_ = true;
  for (size_t i = 2; i < fds.size(); ++i) {
    if (fds[i].revents == 0) continue;
    const Watch& w = watches[i];
    if (w.what == 0) accept_connection(*w.slot);
    if (w.what == 1) on_ready(*w.slot, *w.instance);
    if (w.what == 2 && !w.instance->lines.read_from(w.instance->standard_error.get(), w.slot->log))
      w.instance->standard_error.close();
  }
  // Last, because it removes instances that the watches point to.
  if (fds[0].revents != 0) reap();
}

void Supervisor::on_ready(Slot& slot, Instance& instance) {
  char text[16];
  ssize_t n = ::read(instance.ready.get(), text, sizeof text);
  if (n < 0 && errno == EAGAIN) return;
  instance.ready.close();
  if (n <= 0) return;  // closed without a word: the exit follows, or the startup deadline
  slot.state = State::kReady;
  slot.failures = 0;
  slot.ready_after_ms = monotonic_ms() - instance.started_ms;
  bool first = !std::exchange(slot.was_ready, true);
  if (options_.progress && first)
    options_.progress(fmt::format("{} ready in {} ms", slot.unit.name, slot.ready_after_ms));
  bool node_became_ready = node_ready_ms_ == 0 && all_ready();
  if (node_became_ready) {
    node_ready_ms_ = monotonic_ms();
    for (Slot& other : slots_) other.log.set_raw(options_.raw_logs);
  }
  // The status document first: who reads the line may ask for it.
  changed();
  if (options_.progress && node_became_ready)
    options_.progress(fmt::format("node ready in {} ms", node_ready_ms_ - began_ms_));
}

bool Supervisor::all_ready() const {
  return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.state == State::kReady; });
}

void Supervisor::reap() {
  signalfd_siginfo info;
  while (::read(child_signals_.get(), &info, sizeof info) > 0) {
  }
  int status = 0;
  pid_t pid;
  while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
    for (Slot& slot : slots_) {
      auto instance = std::find_if(slot.instances.begin(), slot.instances.end(),
                                   [&](const Instance& i) { return i.process.monitor == pid; });
      if (instance == slot.instances.end()) continue;
      on_exit(slot, instance, status);
      break;
    }
  }
}

void Supervisor::drain_output(Slot& slot, Instance& instance) {
  // Bounded, because a process that writes without end must not hold the launcher.
  for (int i = 0; i < 64 && instance.standard_error; ++i) {
    pollfd p{instance.standard_error.get(), POLLIN, 0};
    if (::poll(&p, 1, 0) <= 0) return;
    if (!instance.lines.read_from(instance.standard_error.get(), slot.log)) instance.standard_error.close();
  }
}

void Supervisor::on_exit(Slot& slot, std::list<Instance>::iterator instance, int status) {
  drain_output(slot, *instance);
  int64_t ran_ms = monotonic_ms() - instance->started_ms;
  slot.instances.erase(instance);
  if (slot.unit.life == Life::kPerRequest) return;
  if (stopping_) {
    slot.state = State::kStopped;
    return;
  }
  bool was_ready = slot.state == State::kReady;
  if (options_.progress)
    options_.progress(fmt::format("{} {} after {} ms; starting it again", slot.unit.name, exit_text(status), ran_ms));
  // A runtime that has warmed the prefix pool ends well before it ever serves; that is its plan, not a fault.
  if (!was_ready) ++slot.failures;
  bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  bool planned = slot.unit.restart_at_once && ended_well && slot.failures < kMaxStartFailures;
  if (!was_ready && !planned && node_ready_ms_ == 0 && slot.failures >= kMaxStartFailures) {
    std::string said = slot.log.last_lines();
    failure_ = fmt::format("{} {}{}", slot.unit.name, exit_text(status), said.empty() ? "" : ": " + said);
  }
  if (was_ready && ran_ms >= kStableAfterMs) slot.backoff_ms = kFirstBackoffMs;
  // One that fails right after each start would take a core for itself.
  bool failed_early = !ended_well && ran_ms < kFailsEarlyMs;
  bool at_once = planned || (slot.unit.restart_at_once && was_ready && !failed_early);
  slot.next_start_ms = monotonic_ms() + (at_once ? 0 : slot.backoff_ms);
  if (!at_once) slot.backoff_ms = std::min(slot.backoff_ms * 2, kMaxBackoffMs);
  slot.state = State::kBackoff;
  changed();
}

std::string Supervisor::status_document() const {
  std::string out =
      fmt::format("{{\"sandbox\":\"{}\",\"node_ready\":{},\"ready_ms\":{},\"units\":[", launcher_.name(),
                  node_ready_ms_ != 0 && all_ready(), node_ready_ms_ == 0 ? 0 : node_ready_ms_ - began_ms_);
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    out += fmt::format("{}{{\"name\":\"{}\",\"state\":\"{}\",\"starts\":{},\"instances\":{},\"ready_ms\":{}}}",
                       i == 0 ? "" : ",", slot.unit.name, state_name(static_cast<int>(slot.state)), slot.starts,
                       slot.instances.size(), slot.ready_after_ms);
  }
  return out + "]}\n";
}

void Supervisor::changed() {
  if (options_.write_status) options_.write_status(status_document());
}

void Supervisor::stop_all() {
  stopping_ = true;
  for (Slot& slot : slots_) slot.listener.close();
  for (const std::string& name : options_.stop_first)
    if (Slot* slot = find(name)) stop_unit(*slot, failure_.empty() ? options_.drain_timeout_ms : kStopStepMs);
  for (auto slot = slots_.rbegin(); slot != slots_.rend(); ++slot)
    stop_unit(*slot, slot->unit.life == Life::kPerRequest ? 1000 : kStopStepMs);
  changed();
}

// SIGTERM, a wait, SIGKILL, a wait. Other processes' exits and output are handled meanwhile.
void Supervisor::stop_unit(Slot& slot, int64_t limit_ms) {
  for (int number : {SIGTERM, SIGKILL}) {
    for (Instance& instance : slot.instances) instance.signal(number);
    Deadline deadline = Deadline::in_ms(number == SIGTERM ? limit_ms : 2000);
    while (!slot.instances.empty() && !deadline.passed()) {
      pollfd p{child_signals_.get(), POLLIN, 0};
      ::poll(&p, 1, static_cast<int>(std::min<int64_t>(deadline.remaining_ms(), 50)));
      for (Slot& other : slots_)
        for (Instance& instance : other.instances) drain_output(other, instance);
      reap();
    }
    if (slot.instances.empty()) break;
  }
  slot.state = State::kStopped;
}

}  // namespace tie::launcher
