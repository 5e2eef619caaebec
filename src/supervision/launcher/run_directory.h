// The node's folder for sockets, state and logs: always in memory, never on a disk; one running node each. Every socket
// has a folder of its own, so that mounting that folder shows a process exactly one socket, and a daemon that is
// restarted can make its socket again.
//
//   RUN/lock                        held while the launcher runs; carries the marker by which a stale folder is
//   recognised as ours RUN/<socket>/<socket>.sock      owner, cb_jobhelper, tie_cloud_app, wsd-decap, ...
//   RUN/runtime/MODEL/runtime.sock, RUN/probe/MODEL/probe.sock
//   RUN/stage/                      the programs, libraries and model files that run, as measured
//   RUN/state/, RUN/log/, RUN/release/manifest, RUN/status.json
//
// Threads: one. Owns: the lock and the folder's contents, removed with the object.
#pragma once
#include <optional>
#include <string>

#include "os/fd.h"

namespace tie::launcher {

// `given` if not empty; else $TIE_RUN; else $XDG_RUNTIME_DIR/tie if that is in memory; else /run/tie for root if in
// memory; else /dev/shm/tie-UID.
Result<std::string> choose_run_directory(const std::string& given);
// Whether the folder (or its nearest existing parent) lies on tmpfs or ramfs.
bool is_in_memory(const std::string& path);

std::string socket_path(const std::string& run, const std::string& socket);
std::string model_socket_path(const std::string& run, const std::string& kind, const std::string& model);

class RunDirectory {
 public:
  // Takes the lock and empties what a launcher that was killed left behind. Errors: kAlreadyExists (a node runs there),
  // kPermissionDenied (the folder is someone else's or not ours to empty), kBadRequest (not in memory, or too long for
  // socket paths).
  static Result<RunDirectory> create(const std::string& path);
  RunDirectory(RunDirectory&&) = default;
  ~RunDirectory();

  const std::string& path() const { return path_; }
  Result<void> make_folder(const std::string& relative);

 private:
  RunDirectory() = default;
  std::string path_;
  os::Fd lock_;
};

// The process that holds the lock of a run directory, if one does.
std::optional<pid_t> running_launcher(const std::string& run);
// Empties and removes a folder that a killed launcher left. Refuses (kAlreadyExists) while one runs, and folders that
// are not ours.
Result<void> remove_stale_run_directory(const std::string& run);

}  // namespace tie::launcher
