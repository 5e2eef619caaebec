// Where tests find published vectors: the whole suites when they are on this machine, the slices of tests/data always.
// Tests only.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/bytes.h"

namespace tie::crypto {

// Every existing copy of suite/file: the slice, then the whole.
inline std::vector<nlohmann::json> vector_files(const std::string& suite, const std::string& file) {
  const char* shared = std::getenv("TIE_SHARED_DATA");
  const std::filesystem::path source = TIE_SOURCE_DIR;
  std::vector<nlohmann::json> out;
  for (const std::filesystem::path& folder :
       {source / "tests/data", shared ? std::filesystem::path(shared) : source / "../shared/data"}) {
    std::ifstream in(folder / suite / file);
    if (in) out.push_back(nlohmann::json::parse(in));
  }
  return out;
}

inline Bytes hex_of(const nlohmann::json& object, const char* field) {
  auto bytes = from_hex(object.at(field).get<std::string>());
  if (!bytes) throw std::runtime_error(std::string("not hex: ") + field);
  return *bytes;
}

}  // namespace tie::crypto
