"""Thousands of configurations of one job: which of them fit on which GPU.

    spec (TOML) -> configurations -> executor -> store (SQLite) -> results (Parquet, CSV, JSON lines)

Finished rows survive any interruption; the results do not depend on where and in which order they were made.
"""

from xmem.sweep.configuration import Configuration
from xmem.sweep.driver import SweepSummary, run_sweep
from xmem.sweep.outcome import ConfigurationOutcome
from xmem.sweep.spec import Spec, read_spec

__all__ = ["Configuration", "ConfigurationOutcome", "Spec", "SweepSummary", "read_spec", "run_sweep"]
