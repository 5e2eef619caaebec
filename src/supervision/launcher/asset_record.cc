#include "supervision/launcher/asset_record.h"

#include "os/fd.h"

namespace tie::launcher {
namespace {

constexpr size_t kMaxRecordBytes = size_t{64} << 10;

}  // namespace

toml::table asset_record(const std::string& model_folder) {
  auto text = os::read_file(model_folder + "/model.toml", kMaxRecordBytes);
  if (!text) return {};
  try {
    return toml::parse(as_text(*text));
  } catch (const toml::parse_error&) {
    return {};
  }
}

}  // namespace tie::launcher
