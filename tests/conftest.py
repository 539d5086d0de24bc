"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# No test depends on how long an example takes: machines are shared.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
