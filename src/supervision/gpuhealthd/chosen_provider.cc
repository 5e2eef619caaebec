#include "supervision/gpuhealthd/chosen_provider.h"

#include <atomic>

#include "supervision/gpuhealthd/cpu_provider.h"
#include "supervision/gpuhealthd/nvml_provider.h"

namespace tie::gpuhealth {
namespace {

class ChosenProvider final : public DeviceProvider {
 public:
  ChosenProvider(std::string wanted, std::string library) : wanted_(std::move(wanted)), library_(std::move(library)) {}

  const char* name() const override { return name_; }

  Result<std::vector<DeviceVerdict>> poll() override {
    if (chosen_ == nullptr) {
      TIE_TRY(chosen_, choose());
      name_ = chosen_->name();
    }
    return chosen_->poll();
  }

 private:
  Result<std::unique_ptr<DeviceProvider>> choose() const {
    if (wanted_ == "cpu") return make_cpu_provider();
    auto nvml = make_nvml_provider(library_);
    bool absent = !nvml && nvml.error().code == Code::kNotFound;
    if (absent && wanted_ == "auto") return make_cpu_provider();
    return nvml;
  }

  std::string wanted_, library_;
  std::unique_ptr<DeviceProvider> chosen_;     // polling thread only
  std::atomic<const char*> name_{"none yet"};  // read by others
};

}  // namespace

std::unique_ptr<DeviceProvider> make_chosen_provider(std::string wanted, std::string nvml_library) {
  return std::make_unique<ChosenProvider>(std::move(wanted), std::move(nvml_library));
}

}  // namespace tie::gpuhealth
