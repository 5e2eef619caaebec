// What ModelMetadata and ModelConfig say about the served model: exactly the tensors of README.md.
#pragma once
#include <string>

#include "grpc_service.pb.h"

namespace tie::runtime_host {

inference::ModelMetadataResponse model_metadata(const std::string& model);
inference::ModelConfig model_config(const std::string& model);

}  // namespace tie::runtime_host
