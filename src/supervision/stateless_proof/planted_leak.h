// How a detector is proved before its silence is believed: another process that holds every form in its memory and in a
// memfd, and a file that holds them. Used by `tie node prove-stateless` at each run and by the tests.
#pragma once
#include <string>

#include "os/fd.h"
#include "supervision/stateless_proof/leak_search.h"
#include "supervision/stateless_proof/node_search.h"

namespace tie::proof {

class PlantedLeak {
 public:
  // `command`: words that start run_planted_leak() in another process. `folder`: where the file goes; it is made, with
  // mode 0700, and removed again. Returns when everything lies in its place.
  static Result<PlantedLeak> plant(const std::vector<LeakForm>& forms, const std::vector<std::string>& command,
                                   const std::string& folder);
  PlantedLeak(PlantedLeak&& other) noexcept;
  PlantedLeak& operator=(PlantedLeak&&) = delete;
  ~PlantedLeak();  // ends the process, removes the folder

  const NodeProcess& process() const { return process_; }
  const std::string& folder() const { return folder_; }

 private:
  PlantedLeak() = default;
  NodeProcess process_;
  std::string folder_;
  os::Fd input_;
};

// The other process's whole life: takes the forms from standard input, holds them in memory and in a memfd, says one
// line, waits for the end of its input.
int run_planted_leak();

// Plants, searches and says for each form where its detector was silent; empty: all are proved.
Result<std::vector<std::string>> silent_detectors(const LeakSearch& search, const std::vector<std::string>& command,
                                                  const std::string& folder);

}  // namespace tie::proof
