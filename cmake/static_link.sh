#!/bin/sh
# Runs a link command with the archive of each shared library that CMake's packages name, as a static position-independent program. The
# start of a program that lives for one request is most of its cost, and loading shared libraries is most of its start.
set -eu
program=$1
shift
extra=""
output=""
count=$#
while [ "$count" -gt 0 ]; do
  arg=$1
  shift
  count=$((count - 1))
  if [ "$output" = next ]; then output=$arg; fi
  case $arg in
    -o) output=next ;;
    */libgrpc++_unsecure.so) extra="-lcares -lre2 -lz -laddress_sorting -lupb" ;;
  esac
  case $arg in
    # fmt and toml++ come as shared libraries alone: static_fmt.cc and static_toml.cc have what the objects need of them.
    */libfmt.so* | */libtomlplusplus.so*) continue ;;
    *.so)
      archive="${arg%.so}.a"
      set -- "$@" "$archive" ;;
    *) set -- "$@" "$arg" ;;
  esac
done
# shellcheck disable=SC2086
"$program" -static-pie -Wl,--gc-sections -Wl,-z,pack-relative-relocs -Wl,--start-group "$@" $extra -Wl,--end-group -lpthread -ldl -lm
exec python3 "$(dirname "$0")/static_start.py" "$output"
