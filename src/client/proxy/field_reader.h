// Typed, bounded access to the fields of a JSON object, with errors that name the parameter as OpenAI does. The first
// error sticks: a translation reads all it wants and asks once at the end. One thread; borrows the JSON value.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/proxy/openai_error.h"

namespace tie::client {

class FieldReader {
 public:
  // path: of the object inside the body, "" or "messages[0]".
  FieldReader(const nlohmann::json& object, std::string path);

  // Each marks the field as known; absent and null give nullopt. A wrong type or a value outside [low, high] is an
  // error.
  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high);
  std::optional<double> number(std::string_view name, double low, double high);
  std::optional<std::string> text(std::string_view name);
  const nlohmann::json* array(std::string_view name, size_t max_size);
  const nlohmann::json* object(std::string_view name);
  const nlohmann::json* any(std::string_view name);  // not null
  // Known, of any type, without effect.
  void ignore(std::initializer_list<std::string_view> names);
  // Known and refused unless absent, null, or equal to `harmless`.
  void refuse(std::string_view name, const std::string& why, const nlohmann::json& harmless = nullptr);
  // Fields that nobody asked for become an error: unknown_parameter.
  void refuse_unknown();

  bool failed() const { return error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }
  void fail_with(ApiError error);
  void fail_on(std::string_view name, const std::string& message, Code code = Code::kBadRequest);
  void adopt(const FieldReader& nested) {
    if (nested.failed()) fail_with(*nested.error());
  }
  std::string path_of(std::string_view name) const {
    return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
  }

 private:
  const nlohmann::json& object_;
  std::string path_;
  std::vector<std::string> known_;
  std::optional<ApiError> error_;
};

}  // namespace tie::client
