// toml++ for programs that link statically: Debian ships no archive of it, and the objects expect its library.
#define TOML_IMPLEMENTATION
#include <toml++/toml.h>
