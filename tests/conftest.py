"""Settings of all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# No test depends on how long an example takes: machines are shared.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Answers do not depend on a cuDNN that happens to be installed: tests that want one name it.
os.environ.setdefault("XMEM_CUDNN", "")
