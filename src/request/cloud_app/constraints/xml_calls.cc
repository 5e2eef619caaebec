#include "request/cloud_app/constraints/xml_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tie::request::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxTextLength = 10'000;  // that a raw text's minLength or maxLength may name

// Says nothing about which values are allowed.
bool is_annotation(std::string_view keyword) {
  constexpr std::array kAnnotations{"title",      "description", "default",   "examples", "$comment",
                                    "deprecated", "readOnly",    "writeOnly", "$schema",  "$id"};
  return std::find(kAnnotations.begin(), kAnnotations.end(), keyword) != kAnnotations.end();
}

std::string literal(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool is_text(const Json& schema) {
  const auto type = schema.is_object() ? schema.find("type") : schema.end();
  return schema.is_object() && type != schema.end() && *type == "string";
}

std::unexpected<Refusal> cannot(std::string_view keyword, std::string_view of, const std::string& param) {
  return refuse(Code::kUnsupportedFeature,
                fmt::format("The keyword \"{}\" of {} cannot be enforced in the form in which this model writes calls.",
                            keyword, of),
                param);
}

// A raw text that may only be one of these.
Checked<std::string> one_of(const XmlForm& form, const Json& values, const std::string& key, const std::string& param) {
  std::string out;
  for (const Json& value : values) {
    if (!value.is_string()) continue;  // not a string: never allowed
    const auto text = value.get<std::string>();
    if (text.empty() || text.find(form.after_value) != std::string::npos) return cannot("enum", key, param);
    out += (out.empty() ? "" : " | ") + literal(text);
  }
  if (out.empty()) return cannot("enum", key, param);
  return "(" + out + ") " + literal(form.after_value);
}

// after_value for the inside of a regular expression between slashes.
std::string regex_of_end(const XmlForm& form) {
  std::string out;
  for (char c : form.after_value) out += c == '/' ? "\\/" : c == '\n' ? "\\n" : std::string(1, c);
  return out;
}

Checked<std::string> text_value(const XmlForm& form, const Json& schema, const std::string& key,
                                const std::string& param) {
  uint64_t least = 0, most = UINT64_MAX;
  for (const auto& [keyword, value] : schema.items()) {
    if (keyword == "type" || is_annotation(keyword)) continue;
    if (keyword == "enum" || keyword == "const") {
      if (schema.contains("minLength") || schema.contains("maxLength") ||
          (schema.contains("enum") && schema.contains("const")))
        return cannot(keyword, key, param);
      continue;
    }
    if ((keyword != "minLength" && keyword != "maxLength") || !value.is_number_unsigned() ||
        value.get<uint64_t>() > kMaxTextLength)
      return cannot(keyword, key, param);
    (keyword == "minLength" ? least : most) = value.get<uint64_t>();
  }
  if (schema.contains("const")) return one_of(form, Json::array({schema["const"]}), key, param);
  if (schema.contains("enum")) {
    if (!schema["enum"].is_array()) return cannot("enum", key, param);
    return one_of(form, schema["enum"], key, param);
  }
  if (least == 0 && most == UINT64_MAX) return std::string("xml_text");
  // One terminal, end included, so that the text takes nothing of it; without '<' it cannot hold its end.
  const std::string upper = most == UINT64_MAX ? "" : std::to_string(most);
  return fmt::format("/[^<]{{{},{}}}{}/", least, upper, regex_of_end(form));
}

// A value that is written as JSON; `definitions` of the whole schema go with it.
std::string json_value(const XmlForm& form, const Json& schema, const Json& whole, std::string_view options) {
  std::string head = fmt::format("{{{}", options);
  for (const char* definitions : {"$defs", "definitions"})
    if (whole.contains(definitions)) head += fmt::format(",\"{}\":{}", definitions, whole[definitions].dump());
  if (schema.is_object())
    for (const auto& [keyword, value] : schema.items())
      if (keyword != "$defs" && keyword != "definitions") head += fmt::format(",{}:{}", literal(keyword), value.dump());
  return fmt::format("%json {}}} {}", head, literal(form.after_value));
}

Checked<std::vector<std::string>> required_of(const Json& schema, const std::string& param) {
  std::vector<std::string> out;
  const auto required = schema.find("required");
  if (required == schema.end()) return out;
  if (!required->is_array()) return cannot("required", "the parameters", param);
  for (const Json& name : *required) {
    if (!name.is_string() || !schema.contains("properties") || !schema["properties"].contains(name.get<std::string>()))
      return cannot("required", "the parameters", param);
    out.push_back(name.get<std::string>());
  }
  return out;
}

Checked<void> check_object(const Json& schema, const std::string& param) {
  for (const auto& [keyword, value] : schema.items()) {
    // Nothing beyond the properties is ever written, so additionalProperties is kept whatever it says.
    if (keyword == "type" || keyword == "properties" || keyword == "required" || keyword == "additionalProperties" ||
        keyword == "$defs" || keyword == "definitions" || is_annotation(keyword))
      continue;
    return cannot(keyword, "the parameters", param);
  }
  if (schema.contains("properties") && !schema["properties"].is_object())
    return cannot("properties", "the parameters", param);
  return {};
}

bool is_plain_key(const std::string& key) {
  return !key.empty() && std::all_of(key.begin(), key.end(),
                                     [](unsigned char c) { return c >= 0x20 && c != '<' && c != '>' && c != 0x7f; });
}

}  // namespace

XmlForm qwen_xml_form() {
  return {"\n<function=", ">\n", "<parameter=", ">\n", "\n</parameter>\n", "</function>\n"};
}
XmlForm glm_xml_form() {
  return {"", "\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", ""};
}

XmlForm flat_glm_xml_form() {
  return {"", "", "<arg_key>", "</arg_key><arg_value>", "</arg_value>", ""};
}

Checked<std::string> xml_call_body(const XmlForm& form, const std::string& name, std::string_view schema_text,
                                   std::string_view options, const std::string& param) {
  const Json schema = Json::parse(schema_text, nullptr, false);
  if (!schema.is_object()) return refuse(Code::kBadRequest, "The JSON schema must be a JSON object.", param);
  TIE_CHECK_OK(check_object(schema, param));
  TIE_TRY(const std::vector<std::string> required, required_of(schema, param));
  std::string out = literal(form.before_name + name + form.after_name);
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [key, property] : properties.items()) {
    if (!is_plain_key(key)) return cannot("properties", "the parameters", param);
    if (property.is_boolean() && !property.get<bool>()) return cannot("properties", key, param);
    std::string value = json_value(form, property, schema, options);
    if (is_text(property)) {
      TIE_TRY(value, text_value(form, property, key, param));
    }
    const bool always = std::find(required.begin(), required.end(), key) != required.end();
    out += fmt::format(" ({} {}){}", literal(form.before_key + key + form.after_key), value, always ? "" : "?");
  }
  if (!form.end.empty()) out += " " + literal(form.end);
  return out;
}

std::string xml_text_rule(const XmlForm& form) {
  return fmt::format("xml_text[lazy]: /(.|\\n)*{}/\n", regex_of_end(form));
}

TextParameters text_parameters(const v1::InferenceRequest& request) {
  TextParameters out;
  for (const auto& tool : request.tools()) {
    auto& texts = out[tool.name()];
    const Json schema = Json::parse(tool.parameters_json(), nullptr, false);
    const auto properties = schema.is_object() ? schema.find("properties") : schema.end();
    if (!schema.is_object() || properties == schema.end() || !properties->is_object()) continue;
    for (const auto& [key, property] : properties->items())
      if (is_text(property)) texts.insert(key);
  }
  return out;
}

void append_json_text(std::string_view bytes, std::string& out) {
  for (char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out.append(1, '\\').append(1, c);
    else if (c == '\n')
      out += "\\n";
    else if (byte < 0x20)
      out += fmt::format("\\u{:04x}", byte);
    else
      out += c;
  }
}

}  // namespace tie::request::app
