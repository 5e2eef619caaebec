#include "keys/workload_servicesd/http_message.h"

#include <algorithm>
#include <charconv>

namespace tie::wsd {
namespace {

constexpr std::string_view kLineEnd = "\r\n", kHeadEnd = "\r\n\r\n";

std::unexpected<Error> bad(const char* what) {
  return fail(Code::kBadRequest, what);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  return out;
}

std::string_view take_line(std::string_view& text) {
  const size_t end = std::min(text.find(kLineEnd), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + kLineEnd.size(), text.size()));
  return line;
}

// "METHOD PATH HTTP/1.1", of printable characters.
Result<HttpRequest> parse_request_line(std::string_view line) {
  const size_t first = line.find(' '), last = line.rfind(' ');
  const bool printable = std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c < 127; });
  if (!printable || first == std::string_view::npos || first == last) return bad("not an HTTP request");
  HttpRequest out{std::string(line.substr(0, first)), std::string(line.substr(first + 1, last - first - 1)), {}};
  const std::string_view version = line.substr(last + 1);
  if ((version != "HTTP/1.1" && version != "HTTP/1.0") || out.path.empty() || out.path[0] != '/' ||
      out.path.find(' ') != std::string::npos)
    return bad("not an HTTP request");
  return out;
}

// The body's length by the headers; 0 without one.
Result<size_t> parse_headers(std::string_view headers) {
  std::optional<size_t> length;
  while (!headers.empty()) {
    const std::string_view line = take_line(headers);
    const size_t colon = line.find(':');
    if (colon == 0 || colon == std::string_view::npos || line[0] == ' ' || line[0] == '\t')
      return bad("a header is malformed");
    const std::string name = lower(line.substr(0, colon));
    if (name == "transfer-encoding") return bad("chunked bodies are not taken");
    if (name != "content-length") continue;
    std::string_view value = line.substr(colon + 1);
    while (value.starts_with(' ')) value.remove_prefix(1);
    size_t number = 0;
    const auto read = std::from_chars(value.data(), value.data() + value.size(), number);
    if (length || value.empty() || read.ec != std::errc() || read.ptr != value.data() + value.size())
      return bad("the content length is malformed");
    if (number > kMaxHttpBodyBytes) return bad("the body is too large");
    length = number;
  }
  return length.value_or(0);
}

const char* reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 409:
      return "Conflict";
    default:
      return "Internal Server Error";
  }
}

}  // namespace

Result<std::optional<HttpRequest>> parse_http(std::string_view bytes) {
  const size_t end = bytes.find(kHeadEnd);
  if (end == std::string_view::npos) {
    if (bytes.size() > kMaxHttpHeadBytes) return bad("the head is too large");
    return std::nullopt;
  }
  if (end > kMaxHttpHeadBytes) return bad("the head is too large");
  std::string_view head = bytes.substr(0, end + kLineEnd.size());
  TIE_TRY(HttpRequest out, parse_request_line(take_line(head)));
  TIE_TRY(const size_t length, parse_headers(head));
  const std::string_view body = bytes.substr(end + kHeadEnd.size());
  if (body.size() > length) return bad("bytes follow the request");
  if (body.size() < length) return std::nullopt;
  out.body = body;
  return out;
}

std::string render(const HttpReply& reply) {
  return "HTTP/1.1 " + std::to_string(reply.status) + " " + reason(reply.status) +
         "\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " +
         std::to_string(reply.json.size()) + "\r\n\r\n" + reply.json;
}

}  // namespace tie::wsd
