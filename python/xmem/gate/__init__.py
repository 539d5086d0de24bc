"""The gate: whether a job stays within its budget, its GPU and its baseline, for continuous integration.

    estimate, limits, baseline -> findings, each with what holds or added the bytes

Light until something has grown: the estimate's values are enough.
"""

from xmem.gate.baseline import Baseline, read_baseline, write_baseline
from xmem.gate.judge import Finding, Outcome, Rule, failed_outcome, judge
from xmem.gate.limits import Growth, Limits, Metric, parse_growth

__all__ = [
    "Baseline",
    "Finding",
    "Growth",
    "Limits",
    "Metric",
    "Outcome",
    "Rule",
    "failed_outcome",
    "judge",
    "parse_growth",
    "read_baseline",
    "write_baseline",
]
