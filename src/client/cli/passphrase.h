// The passphrase of a file of the user's: from the environment, else asked for at the terminal without showing it. Used
// by commands before they start threads.
#pragma once
#include <string>

#include "base/secret_bytes.h"

namespace tie::cli {

// `given`: what the environment held; wiped by the caller's end. A file that does not exist yet is asked for twice.
// kBadRequest when there is neither a passphrase nor a terminal, or the two differ.
Result<SecretBytes> passphrase_for(const std::string& path, const std::string& given);

}  // namespace tie::cli
