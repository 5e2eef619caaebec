// The schemas of a request in the user's own words. Parsed JSON does not keep the order of an object's members, and an
// answer's properties come in the order of the schema's. Pure functions over JSON that a parser has accepted already;
// cost: one pass over the body.
#pragma once
#include <string_view>

#include "inference.pb.h"

namespace tie::client {

// Puts the body's own text in the place of every schema that the request holds: tools[i].function.parameters,
// response_format.json_schema.schema, guided_json, structured_outputs.json.
void keep_schema_texts(std::string_view body, v1::InferenceRequest& request);

}  // namespace tie::client
