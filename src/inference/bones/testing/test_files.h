// Where tests find model files and the shared test data. Empty string: not there.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <string>

namespace tie::bones::testing {

inline std::string existing(const std::string& path) {
  return std::filesystem::exists(path) ? path : std::string();
}

inline std::string model_path(const char* variable, const char* name) {
  if (const char* set = std::getenv(variable)) return existing(set);
  return existing(std::string(TIE_SOURCE_DIR) + "/.cache/models/" + name);
}
inline std::string smollm2_path() {
  return model_path("TIE_TEST_MODEL", "smollm2-135m-instruct.gguf");
}
inline std::string gemma3_path() {
  return model_path("TIE_TEST_MODEL_GEMMA3", "gemma3-270m.gguf");
}

inline std::string shared_data(const std::string& name) {
  const char* set = std::getenv("TIE_SHARED_DATA");
  return existing((set ? std::string(set) : std::string(TIE_SOURCE_DIR) + "/../shared/data") + "/" + name);
}

}  // namespace tie::bones::testing
