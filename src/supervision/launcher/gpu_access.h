// What a process needs to use an NVIDIA GPU, and which models ask for one. Given to the owner, a model's runtime and
// gpuhealthd only where a model's model.toml says device = "cuda" or "auto" and the driver's nodes are there; every
// other process sees no device of a GPU. Pure functions over folders; used at start by one thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "os/sandbox.h"

namespace tie::launcher {

// Whether ASSETS/models/MODEL/model.toml wishes a GPU. A record that cannot be read wishes none: its owner says why.
bool model_wishes_gpu(const std::string& assets, const std::string& model);

// nvidiactl, nvidia0 to nvidia31 and nvidia-uvm of the driver, as far as they are in `dev`; empty: no GPU here. Not
// nvidia-modeset, nor the tools' nodes.
std::vector<std::string> gpu_device_nodes(const std::string& dev = "/dev");

// The driver's libraries that programs open by name, and the C library's parts that these name, from the folders
// where a system keeps them.
std::vector<std::string> gpu_driver_libraries();

// How many GPUs the model asks for: one for each of its ranks (`ranks` times `stages`); 0 when it wishes none.
uint32_t gpus_of_model(const std::string& assets, const std::string& model);

// Of `nodes` those that a user of the first `gpus` GPUs needs: their own, and the driver's that belong to none. A rank
// runs on the GPU of its number; ranks share a container, since NCCL maps their GPUs' memory into each other.
std::vector<std::string> nodes_of_first_gpus(const std::vector<std::string>& nodes, uint32_t gpus);

// What a container of several GPU ranks needs more: sockets of its own empty network and shared memory, by which the
// ranks' NCCL meets.
void allow_gpu_ranks(os::SandboxProfile& profile);

// Opens the nodes to the profile, and its system call filter to the driver's ioctls.
void allow_gpu(const std::vector<std::string>& nodes, os::SandboxProfile& profile);

}  // namespace tie::launcher
