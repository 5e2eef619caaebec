// model.toml of a model's asset folder, for what the launcher itself has to know of it; the owner judges the file
// (model_owner/model_record.h). Private to this folder. Pure; no state.
#pragma once
#include <toml++/toml.h>

#include <string>

namespace tie::launcher {

// An empty table for what cannot be read.
toml::table asset_record(const std::string& model_folder);

}  // namespace tie::launcher
