#include "supervision/model_owner/served_version.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "os/fd.h"

namespace tie::owner {
namespace {

constexpr size_t kMaxBytes = 1024;

std::string text_of(const ServedVersion& version) {
  return "model_id " + to_hex(version.model_id) + "\ntokenizer.img " + to_hex(version.tokenizer) + "\ntemplate.jinja " +
         to_hex(version.chat_template) + "\n";
}

}  // namespace

Result<void> write_served(const std::string& folder, const std::string& model, const ServedVersion& version) {
  return os::write_file_atomic(folder + "/" + model, as_bytes(text_of(version)), 0644);
}

void forget_served(const std::string& folder, const std::string& model) {
  ::unlink((folder + "/" + model).c_str());
}

// The owner may put anything there, and whoever reads it may do more than the owner: no link is followed, no pipe
// waited for.
std::optional<ServedVersion> read_served(const std::string& folder, const std::string& model) {
  os::Fd file(::open((folder + "/" + model).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat st{};
  if (!file || ::fstat(file.get(), &st) != 0 || !S_ISREG(st.st_mode)) return std::nullopt;
  std::array<char, kMaxBytes + 1> text;
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  if (size < 0 || static_cast<size_t>(size) > kMaxBytes) return std::nullopt;
  ServedVersion out;
  std::string_view rest(text.data(), static_cast<size_t>(size));
  for (auto [name, digest] : {std::pair{"model_id ", &out.model_id},
                              {"tokenizer.img ", &out.tokenizer},
                              {"template.jinja ", &out.chat_template}}) {
    const size_t start = std::string_view(name).size(), end = rest.find('\n');
    if (!rest.starts_with(name) || end == std::string_view::npos) return std::nullopt;
    auto bytes = from_hex(rest.substr(start, end - start));
    if (!bytes || bytes->size() != digest->size()) return std::nullopt;
    std::copy(bytes->begin(), bytes->end(), digest->begin());
    rest.remove_prefix(end + 1);
  }
  return out;
}

}  // namespace tie::owner
