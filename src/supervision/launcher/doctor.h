// What this machine can and cannot guarantee to the users of a node: each finding says what was found, what follows
// from it, and how to get the missing thing. Nothing is assumed: each facility is tried where trying is harmless.
// Called by `tie doctor` and, for the words of its refusal, `tie up`. One thread; starts short-lived children. Cost:
// about 50 ms.
#pragma once
#include <string>
#include <vector>

namespace tie::launcher {

enum class Verdict {
  kOk,       // the guarantee holds on this machine
  kMissing,  // the node runs, without this guarantee
  kBlocking  // `tie up` refuses
};

struct Finding {
  std::string name;
  Verdict verdict = Verdict::kOk;
  std::string found;    // what was seen
  std::string meaning;  // what follows, for a person; empty when all is well
  std::string remedy;   // how to get it
};

std::vector<Finding> examine_machine(const std::string& run_dir);

std::string findings_as_text(const std::vector<Finding>& findings);
std::string findings_as_json(const std::vector<Finding>& findings);
bool any(const std::vector<Finding>& findings, Verdict verdict);

}  // namespace tie::launcher
