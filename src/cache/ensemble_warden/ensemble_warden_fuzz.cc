// What the store gives back, to a warden with a key: nothing hostile opens, nothing crashes. The first byte chooses
// between rubbish and a well-sealed manifest or segment with rubbish written over a part of it.
#include <algorithm>
#include <cstring>

#include "cache/ensemble_warden/ensemble_warden.h"

namespace {

using namespace tie;
using namespace tie::cache;

constexpr SegmentShape kShape{.first_token = 16, .block_count = 2, .block_tokens = 16, .block_bytes = 64};

EnsembleWarden keyed() {
  EnsembleWarden warden(CacheIdentity{});
  tie_check(warden.set_key(SecretBytes(32)).has_value(), "a fresh warden takes a key");
  return warden;
}

// True when a byte of `good` really changed.
bool overwrite(Bytes& good, ByteView with) {
  if (with.empty()) return false;
  Bytes before = good;
  size_t at = with[0] * 3u % good.size();
  std::memcpy(&good[at], with.data(), std::min(with.size(), good.size() - at));
  return good != before;
}

void try_manifest(ByteView input) {
  Bytes sealed = *keyed().seal_manifest({{1, 2, 3}, {SegmentReference{}}});
  bool changed = overwrite(sealed, input);
  tie_check(keyed().open_manifest(sealed).has_value() != changed, "a changed manifest does not open, a whole one does");
}

void try_segment(ByteView input) {
  Bytes plain(64, 9), sealed(*EnsembleWarden::sealed_segment_bytes(kShape));
  SegmentReference reference = *keyed().seal_segment(kShape, [&](uint32_t) -> ByteView { return plain; }, sealed);
  bool changed = overwrite(sealed, input);
  reference.digest = EnsembleWarden::segment_digest(kShape, sealed);  // a store that also forges the manifest's digest
  std::array<Bytes, 2> opened = {Bytes(64), Bytes(64)};
  auto done =
      keyed().open_segment(reference, kShape, sealed, [&](uint32_t i) -> std::span<uint8_t> { return opened[i]; });
  tie_check(done.has_value() != changed, "a changed segment does not open, a whole one does");
  if (changed) tie_check(opened[0] == Bytes(64) || opened[0] == plain, "no unauthenticated byte is left");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  ByteView rest(data + 1, size - 1);
  if (data[0] % 3 == 0) return keyed().open_manifest(rest).has_value() ? __builtin_trap(), 0 : 0;
  if (data[0] % 3 == 1) try_manifest(rest);
  if (data[0] % 3 == 2) try_segment(rest);
  return 0;
}
