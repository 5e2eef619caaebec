// Tool calls whose arguments stand one by one between markers (Qwen3-Coder, GLM-4): the grammar of such a call, and
// which arguments are raw text in it. A parameter of type "string" is written as it is, every other one as JSON. Fail
// closed: what a schema asks of a raw text or of the whole object and these forms cannot keep is refused by name. Pure.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "inference.pb.h"
#include "request/cloud_app/refusal.h"

namespace tie::request::app {

// Everything between the call's open and close markers, in order; after_value ends a value.
struct XmlForm {
  std::string before_name, after_name, before_key, after_key, after_value, end;
};

// Qwen3-Coder: \n<function=f>\n<parameter=k>\nv\n</parameter>\n</function>\n
XmlForm qwen_xml_form();
// GLM-4.7: f<arg_key>k</arg_key><arg_value>v</arg_value>
XmlForm flat_glm_xml_form();
// GLM-4 up to 4.6: f\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n
XmlForm glm_xml_form();

// The right side of a Lark rule for one function. `schema`: its parameters; `options`: members to put before the others
// in a JSON value's schema. Uses the rule of xml_text_rule().
Checked<std::string> xml_call_body(const XmlForm& form, const std::string& name, std::string_view schema,
                                   std::string_view options, const std::string& param);
// The rule of a raw text up to and with its end.
std::string xml_text_rule(const XmlForm& form);

using TextParameters = std::map<std::string, std::set<std::string>, std::less<>>;
// Of each function, the parameters that are raw text.
TextParameters text_parameters(const v1::InferenceRequest& request);

// Appends bytes as the inside of a JSON string; any cut of the input gives the same.
void append_json_text(std::string_view bytes, std::string& out);

}  // namespace tie::request::app
