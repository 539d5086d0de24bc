"""Thousands of configurations of one job: which of them fit on which GPU.

    spec (TOML) -> configurations -> executor -> store (SQLite) -> results (Parquet, CSV, JSON lines)

Finished rows survive any interruption; the results do not depend on where and in which order they were made.
"""

from xmem.sweep.configuration import Configuration
from xmem.sweep.outcome import Outcome
from xmem.sweep.run import Summary, run_sweep
from xmem.sweep.spec import Spec, read_spec

__all__ = ["Configuration", "Outcome", "Spec", "Summary", "read_spec", "run_sweep"]
