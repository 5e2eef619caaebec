// Why a request is not served, with the parameter at fault in OpenAI's name. What the user hears as the `error` of an
// event.
#pragma once
#include <expected>
#include <string>

#include "base/result.h"

namespace tie::request::app {

struct Refusal {
  Code code = Code::kInternal;
  std::string message;
  std::string param;
  Refusal() = default;
  Refusal(Code c, std::string m, std::string p = "") : code(c), message(std::move(m)), param(std::move(p)) {}
  Refusal(Error error) : code(error.code), message(std::move(error.message)) {}
};

template <typename T>
using Checked = std::expected<T, Refusal>;

inline std::unexpected<Refusal> refuse(Code code, std::string message, std::string param = "") {
  return std::unexpected(Refusal{code, std::move(message), std::move(param)});
}
inline std::unexpected<Refusal> refuse(Error error, std::string param) {
  return std::unexpected(Refusal{error.code, std::move(error.message), std::move(param)});
}

}  // namespace tie::request::app
