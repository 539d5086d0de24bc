"""The largest value that fits is the one that trying all of them would find."""

from __future__ import annotations

import pytest

from scaling.models import model_of
from training_sample import MIB
from xmem.devices.gpus import custom_device
from xmem.errors import ConfigError
from xmem.estimation.need import memory_needed
from xmem.estimation.question import Question
from xmem.scaling import find_largest
from xmem.scaling.largest import curve_of


@pytest.mark.parametrize("capacity_mib", [297, 330, 400, 700])
def test_the_largest_is_what_trying_all_finds(capacity_mib: int) -> None:
    model = model_of(2, 3)
    device = custom_device(capacity_mib * MIB)
    found = find_largest(model, "batch", device)
    fitting = [
        batch
        for batch in range(1, found.bound + 20)
        if memory_needed(model.at(batch=batch), Question(device)).fits
    ]
    assert found.value == max(fitting)
    assert found.value <= found.bound
    assert found.need is not None
    assert found.need.device_peak_bytes <= device.total_memory_bytes


def test_nothing_fits_on_a_device_that_is_too_small() -> None:
    found = find_largest(model_of(2, 3), "batch", custom_device(270 * MIB))
    assert (found.value, found.need) == (0, None)


def test_a_larger_batch_may_fit_where_smaller_ones_do_not() -> None:
    """Blocks of 9 to 16 MiB leave parts of their segments unused that those of 17 do not."""
    model, device = model_of(2, 3), custom_device(297 * MIB)
    fitting = [b for b in range(1, 40) if memory_needed(model.at(batch=b), Question(device)).fits]
    assert fitting == [*range(1, 9), 17, 18]
    found = find_largest(model, "batch", device)
    assert found.value == 18
    assert found.smaller_misfits == tuple(range(9, 17))


def test_a_dimension_must_be_the_models_and_matter() -> None:
    with pytest.raises(ConfigError, match="is not a dimension of the model; use one of batch"):
        find_largest(model_of(2, 3), "seq", custom_device(400 * MIB))


def test_the_curve_is_that_of_single_answers() -> None:
    model = model_of(2, 3)
    curve = curve_of(model, "batch", 50, 6)
    assert [point.value for point in curve] == [1, 11, 21, 30, 40, 50]
    for point in curve:
        need = memory_needed(model.at(batch=point.value))
        assert (point.peak_reserved_bytes, point.peak_allocated_bytes) == (
            need.peak_reserved_bytes,
            need.peak_allocated_bytes,
        )
