"""The wire sizes of tests/e2e/test_wire_sizes.py, over a thousand mixed requests."""
import os

os.environ.setdefault("TIE_WIRE_REQUESTS", "1000")
from test_wire_sizes import test_every_sealed_size_on_the_wire_is_a_bucket  # noqa: E402, F401
