// Applies a LeakSearch to the places where something could be left: a process's memory, its memfds and deleted files,
// and folders. Needs the right to trace the processes (root). One thread. Each shared object is searched once, whoever
// maps it. Never stops at a find or at a place that cannot be read: both are in the report.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "supervision/stateless_proof/leak_search.h"
#include "supervision/stateless_proof/node_processes.h"

namespace tie::proof {

struct Find {
  std::string form;
  std::string place;  // "tie-cloud-app 4711: memory of [heap]"
  std::string owner;  // the process's program, or "" for a file
  size_t times = 0;
};

struct SearchReport {
  std::vector<Find> finds;
  std::vector<std::string> unreadable;  // places that could not be searched: without them nothing is proved
  size_t processes = 0, memfds = 0, files = 0;
  uint64_t memory_bytes = 0, memfd_bytes = 0, file_bytes = 0;
  size_t secret_pages = 0;  // memfd_secret: the kernel lets nobody read them, root included

  const Find* find(std::string_view form, std::string_view owner = {}) const;
};

// kPermissionDenied with what to do about it when the memory of `pid` cannot be opened.
Result<void> may_search(pid_t pid);

class NodeSearch {
 public:
  explicit NodeSearch(const LeakSearch& search) : search_(search) {}
  // Memory that is present or swapped out, memfds and deleted files that it holds. A process that ends meanwhile is no
  // fault.
  void search_process(const NodeProcess& process);
  // Every regular file below it, symbolic links not followed. A missing folder is empty.
  void search_folder(const std::string& folder);
  SearchReport take_report() { return std::move(report_); }

 private:
  struct Region;
  void search_region(const NodeProcess& process, int memory, int pagemap, const Region& region);
  // Reads [begin, end) of `fd` in pieces that overlap by a pattern's length.
  uint64_t search_range(int fd, uint64_t begin, uint64_t end, const std::string& place, const std::string& owner,
                        bool& failed);
  void search_descriptors(const NodeProcess& process);
  void search_file(const std::string& path, const std::string& place, const std::string& owner, bool is_memfd);
  void add_find(size_t form, const std::string& place, const std::string& owner);

  const LeakSearch& search_;
  SearchReport report_;
  std::set<std::string> seen_;  // "device:inode" of files, with an offset for mappings
  Bytes buffer_;
};

}  // namespace tie::proof
