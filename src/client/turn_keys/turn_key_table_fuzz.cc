// What a sealed file holds, after it was opened: may not crash the table, and what it took must survive a round trip.
#include "base/result.h"
#include "client/turn_keys/turn_key_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tie::client::TurnKeyTable table({.max_histories = 64}), again({.max_histories = 64});
  if (!table.parse({data, size})) return 0;
  tie::SecretBytes bytes = table.serialize();
  tie::tie_check(again.parse(bytes.view()).has_value(), "what the table wrote can be read");
  tie::tie_check(again.histories() == table.histories(), "a round trip keeps every history");
  return 0;
}
