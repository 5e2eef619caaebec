// tie-cloud-app: the front end of one request. Started per connection (fd 3) by the launcher or systemd, warms up,
// serves one request from cb_jobhelper, exits. Source: spec, "Inference application (tie-cloud-app)".
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "crypto/library_start.h"
#include "os/log.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "request/cloud_app/app.h"

namespace {

// A few flags: a command-line library would cost more than this process's whole start.
bool parse(int argc, char** argv, tie::request::app::Config& out) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--assets") == 0)
      out.assets = argv[i + 1];
    else if (std::strcmp(argv[i], "--runtime-dir") == 0)
      out.runtime_dir = argv[i + 1];
    else if (std::strcmp(argv[i], "--kvxfer-dir") == 0)
      out.kvxfer_dir = argv[i + 1];
    else
      return false;
  }
  return argc % 2 == 1 && !out.assets.empty() && !out.runtime_dir.empty();
}

tie::Result<void> run(const tie::request::app::Config& config) {
  using namespace tie;
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(os::Fd connection, os::activation_connection());
  TIE_TRY(auto app, request::app::App::warm_up(std::move(connection), config));
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kPerRequest));
  auto served = app->serve();
  (void)app.release();  // the process ends here, and its memory with it
  return served;
}

}  // namespace

int main(int argc, char** argv) {
  tie::crypto::start_library_for_one_request();
  tie::request::app::Config config;
  if (!parse(argc, argv, config)) {
    std::fprintf(stderr,
                 "usage: tie-cloud-app --assets DIR --runtime-dir DIR [--kvxfer-dir DIR]   (one connection as fd 3)\n");
    return 2;
  }
  auto result = run(config);
  if (!result) TIE_LOG("tie-cloud-app", "ended with {}", result.error().code);
  ::_exit(result ? 0 : 1);
}
