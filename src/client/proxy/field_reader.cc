#include "client/proxy/field_reader.h"

#include <fmt/format.h>

#include <algorithm>

namespace tie::client {
namespace {

const char* kind_of(const nlohmann::json& value) {
  if (value.is_number_integer()) return "an integer";
  switch (value.type()) {
    case nlohmann::json::value_t::object:
      return "an object";
    case nlohmann::json::value_t::array:
      return "an array";
    case nlohmann::json::value_t::string:
      return "a string";
    case nlohmann::json::value_t::boolean:
      return "a boolean";
    case nlohmann::json::value_t::null:
      return "null";
    default:
      return "a decimal number";
  }
}

std::string printable(std::string_view name) {
  return std::string(name.substr(0, 80));
}

}  // namespace

FieldReader::FieldReader(const nlohmann::json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object_.is_object()) {
    std::string where = path_.empty() ? "The body" : "'" + path_ + "'";
    fail_with(
        {Code::kBadRequest, where + " must be an object, not " + kind_of(object_) + ".", path_, "invalid_type", 0});
  }
}

void FieldReader::fail_with(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void FieldReader::fail_on(std::string_view name, const std::string& message, Code code) {
  fail_with({code, message, path_of(name), code == Code::kBadRequest ? "invalid_value" : "", 0});
}

const nlohmann::json* FieldReader::any(std::string_view name) {
  known_.emplace_back(name);
  if (!object_.is_object()) return nullptr;
  auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

#define TIE_EXPECT_TYPE(value, name, test, word)                                                                   \
  if (!(value)) return {};                                                                                         \
  if (!(value)->test()) {                                                                                          \
    fail_with({Code::kBadRequest, fmt::format("'{}' must be {}, not {}.", path_of(name), word, kind_of(*(value))), \
               path_of(name), "invalid_type", 0});                                                                 \
    return {};                                                                                                     \
  }

std::optional<bool> FieldReader::boolean(std::string_view name) {
  const auto* value = any(name);
  TIE_EXPECT_TYPE(value, name, is_boolean, "a boolean")
  return value->get<bool>();
}

std::optional<int64_t> FieldReader::integer(std::string_view name, int64_t low, int64_t high) {
  const auto* value = any(name);
  TIE_EXPECT_TYPE(value, name, is_number_integer, "an integer")
  bool fits = !value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t(INT64_MAX);
  int64_t number = fits ? value->get<int64_t>() : INT64_MAX;
  if (!fits || number < low || number > high) {
    fail_on(name, fmt::format("'{}' must be between {} and {}.", path_of(name), low, high));
    return {};
  }
  return number;
}

std::optional<double> FieldReader::number(std::string_view name, double low, double high) {
  const auto* value = any(name);
  TIE_EXPECT_TYPE(value, name, is_number, "a number")
  double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    fail_on(name, fmt::format("'{}' must be between {} and {}.", path_of(name), low, high));
    return {};
  }
  return number;
}

std::optional<std::string> FieldReader::text(std::string_view name) {
  const auto* value = any(name);
  TIE_EXPECT_TYPE(value, name, is_string, "a string")
  return value->get<std::string>();
}

const nlohmann::json* FieldReader::array(std::string_view name, size_t max_size) {
  const auto* value = any(name);
  TIE_EXPECT_TYPE(value, name, is_array, "an array")
  if (value->size() > max_size) {
    fail_on(name, fmt::format("'{}' has {} entries; at most {} are taken.", path_of(name), value->size(), max_size));
    return nullptr;
  }
  return value;
}

const nlohmann::json* FieldReader::object(std::string_view name) {
  const auto* value = any(name);
  TIE_EXPECT_TYPE(value, name, is_object, "an object")
  return value;
}

void FieldReader::ignore(std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) known_.emplace_back(name);
}

void FieldReader::refuse(std::string_view name, const std::string& why, const nlohmann::json& harmless) {
  const auto* value = any(name);
  if (!value || *value == harmless) return;
  fail_with({Code::kUnsupportedFeature, fmt::format("'{}' is not supported: {}.", path_of(name), why), path_of(name),
             "unsupported_parameter", 0});
}

void FieldReader::refuse_unknown() {
  if (!object_.is_object()) return;
  for (const auto& item : object_.items()) {
    if (std::find(known_.begin(), known_.end(), item.key()) != known_.end()) continue;
    std::string name = path_of(printable(item.key()));
    fail_with({Code::kBadRequest, fmt::format("Unknown parameter: '{}'.", name), name, "unknown_parameter", 0});
    return;
  }
}

}  // namespace tie::client
