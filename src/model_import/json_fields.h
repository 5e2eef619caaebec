// Typed access to the members of a JSON object from a model folder. kCorrupt names the member and what was wanted. A
// null counts as absent, as published configs use it.
#pragma once
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace tie::model_import {

class Fields {
 public:
  explicit Fields(const nlohmann::json& object, std::string where = "config.json")
      : object_(object), where_(std::move(where)) {}

  // nullptr when absent; a null is found.
  const nlohmann::json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  bool has(const char* key) const { return find(key) != nullptr; }

  Result<uint32_t> whole(const char* key) const {
    const nlohmann::json* value = find(key);
    if (!value || !value->is_number_unsigned() || value->get<uint64_t>() > (1u << 30))
      return wrong(key, "a whole number");
    return static_cast<uint32_t>(value->get<uint64_t>());
  }
  Result<uint32_t> whole_or(const char* key, uint32_t otherwise) const {
    return present(key) ? whole(key) : Result<uint32_t>(otherwise);
  }
  Result<double> number_or(const char* key, double otherwise) const {
    if (!present(key)) return otherwise;
    if (!find(key)->is_number() || !std::isfinite(find(key)->get<double>())) return wrong(key, "a number");
    return find(key)->get<double>();
  }
  Result<bool> flag_or(const char* key, bool otherwise) const {
    if (!present(key)) return otherwise;
    if (!find(key)->is_boolean()) return wrong(key, "true or false");
    return find(key)->get<bool>();
  }
  Result<std::string> text_or(const char* key, const char* otherwise) const {
    if (!present(key)) return std::string(otherwise);
    if (!find(key)->is_string()) return wrong(key, "a text");
    return find(key)->get<std::string>();
  }
  std::unexpected<Error> wrong(const char* key, const char* wanted) const {
    return fail(Code::kCorrupt, where_ + ": " + key + " is not " + wanted);
  }

 private:
  bool present(const char* key) const { return has(key) && !find(key)->is_null(); }

  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace tie::model_import
