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

// What this machine's GPUs are used through. The libraries are the machine's, not the release's.
struct GpuDriver {
  std::vector<std::string> nodes;      // gpu_device_nodes; inside a sandbox they are in /dev, wherever they lie here
  std::vector<std::string> libraries;  // those that programs open by name, and the C library's parts that these name
};

// `root` empty: from where a system keeps them. Else the driver installed below that folder (`gpu_driver_root` of
// node.toml): its libraries, and its nodes where ROOT/dev has them, those of /dev otherwise. kNotFound: no driver
// there.
Result<GpuDriver> find_gpu_driver(const std::string& root);

// The numbers N of the nodes nvidiaN, ascending.
std::vector<uint32_t> gpu_numbers(const std::vector<std::string>& nodes);

// The numbers of the GPUs that the model's ranks run on (`ranks` times `stages` of them): those that its record names
// (`gpus`), else the first ones that are `here`. Empty when it wishes none, or when its record is not one.
std::vector<uint32_t> gpus_of_model(const std::string& assets, const std::string& model,
                                    const std::vector<uint32_t>& here);

// Of `nodes` those that a user of these GPUs needs: their own, and the driver's that belong to none. Ranks share a
// container, since NCCL maps their GPUs' memory into each other.
std::vector<std::string> nodes_of_gpus(const std::vector<std::string>& nodes, const std::vector<uint32_t>& gpus);

// What a container of several GPU ranks needs more: sockets of its own empty network and shared memory, by which the
// ranks' NCCL meets.
void allow_gpu_ranks(os::SandboxProfile& profile);

// Opens the nodes to the profile, and its system call filter to the driver's ioctls.
void allow_gpu(const std::vector<std::string>& nodes, os::SandboxProfile& profile);

}  // namespace tie::launcher
