// Rotary embedding of a config.json: bases, scaling kinds (linear, llama3, yarn, longrope) and their factors. Part of
// hf_config; pure. Source: the rope initialisation functions' public description in `transformers`.
#pragma once
#include "model_import/hf_config.h"
#include "model_import/json_fields.h"

namespace tie::model_import {

// Fills the rope members of `c`, whose sizes are read already. kUnsupportedFeature names an unknown scaling.
Result<void> read_rope(const Fields& fields, HfConfig& c);
void write_rope_metadata(const HfConfig& c, const std::string& prefix, model_files::GgufHeader& out);

}  // namespace tie::model_import
