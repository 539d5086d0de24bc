"""The imbalance of experts, as people write it: a factor, or a quantile of a distribution."""

from __future__ import annotations

import math
import re
from statistics import NormalDist

from xmem.errors import ConfigError

_QUANTILE = re.compile(r"lognormal:(?P<deviation>[\d.]+)@(?P<quantile>[\d.]+)$")
_MOST = 1e6


def imbalance_of(text: str | None) -> float:
    """Return the tokens that experts of a rank get, over their share.

    Args:
        text: A number such as ``1.5``; or ``lognormal:0.3@0.99``, the 0.99 quantile of a log-normal
            distribution with the mean 1, whose logarithm has the standard deviation 0.3. None for 1.

    Raises:
        ConfigError: It is neither, or not positive.
    """
    if text is None:
        return 1.0
    try:
        found = _QUANTILE.match(text)
        factor = float(text) if found is None else _lognormal(**found.groupdict())
    except (ValueError, OverflowError):
        factor = 0.0
    if not 0 < factor <= _MOST:
        raise ConfigError(
            f"--imbalance {text} is invalid",
            "write a number above 0 such as 1.5, or a quantile such as lognormal:0.3@0.99",
        )
    return factor


def _lognormal(deviation: str, quantile: str) -> float:
    sigma = float(deviation)
    return math.exp(sigma * _standard_quantile(float(quantile)) - sigma**2 / 2)


def _standard_quantile(share: float) -> float:
    if not 0 < share < 1:
        raise ValueError
    return NormalDist().inv_cdf(share)
