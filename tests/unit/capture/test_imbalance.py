"""How people write the imbalance of experts."""

from __future__ import annotations

import math

import pytest

from xmem.capture.imbalance import imbalance_of
from xmem.errors import ConfigError


def test_a_number_or_a_quantile() -> None:
    assert imbalance_of(None) == 1.0
    assert imbalance_of("1.5") == 1.5
    assert imbalance_of("lognormal:0.3@0.5") == pytest.approx(math.exp(-0.045))
    assert imbalance_of("lognormal:0.3@0.99") == pytest.approx(math.exp(0.3 * 2.3263478740 - 0.045))
    assert imbalance_of("lognormal:0@0.99") == 1.0


@pytest.mark.parametrize(
    "text", ["", "much", "0", "-1", "nan", "inf", "lognormal:0.3@1", "lognormal:9999@0.99"]
)
def test_what_is_no_imbalance_is_refused(text) -> None:
    with pytest.raises(ConfigError, match="--imbalance"):
        imbalance_of(text)
