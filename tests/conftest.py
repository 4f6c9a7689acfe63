"""For all tests: property tests draw the same examples every time, and a slow machine is no failure."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("obsspec", deadline=None, derandomize=True)
settings.load_profile("obsspec")

# Shells have it ignored in what they run in the background; some tests send themselves one.
signal.signal(signal.SIGINT, signal.default_int_handler)
