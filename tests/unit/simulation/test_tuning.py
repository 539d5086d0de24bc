import numpy as np
import pytest

from xmem.advice.tuning import SettingsOutcome, candidates, search
from xmem.devices.gpus import Device, custom_device
from xmem.errors import ConfigError
from xmem.simulation.alloc_conf import parse
from xmem.simulation.replay import NEVER, Requests, make_requests, replay

MIB = 1 << 20


def growing(steps: int = 8) -> Requests:
    """Each block dies before the next, which no cached segment is large enough for."""
    begin = np.arange(steps) * 10
    return make_requests(begin, begin + 5, (12 + 8 * np.arange(steps)) * MIB)


def steady() -> Requests:
    """One segment, full: nothing could be better."""
    return make_requests([0], [NEVER], [40 * MIB])


def gpu(free_bytes: int) -> Device:
    context = custom_device(80 << 30).context_bytes
    return custom_device(context + free_bytes)


def works(requests: Requests, device: Device, outcome: SettingsOutcome, capacity_bytes: int) -> bool:
    options = parse(outcome.alloc_conf, "2.13")
    return (
        replay(requests, options=options, capacity_bytes=capacity_bytes, other_bytes=device.context_bytes).oom
        is None
    )


@pytest.mark.parametrize("version", ["2.0", "2.6", "2.9", "2.10", "2.13", "2.14"])
def test_candidates_are_many_distinct_and_accepted(version: str) -> None:
    texts = candidates(custom_device(24 << 30), version)
    assert len(texts) == len(set(texts)) >= 200
    assert "" not in texts
    for text in texts:
        parse(text, version)
    keys = [text.count(":") for text in texts]
    assert keys == sorted(keys)


def test_collection_comes_with_the_limit_that_it_needs() -> None:
    device = custom_device(10 << 30)
    collecting = [text for text in candidates(device, "2.13") if "garbage" in text]
    assert collecting
    for text in collecting:
        fraction = parse(text, "2.13").memory_fraction
        assert fraction is not None
        assert fraction * device.total_memory_bytes <= device.usable_bytes
    assert not [text for text in candidates(device, "2.8") if "garbage" in text]


def test_a_job_that_fragments_is_told_what_helps() -> None:
    requests, device = growing(), gpu(4 << 30)
    tuning = search(requests, device, "2.13")
    assert tuning.best is not None
    assert tuning.defaults.peak_reserved_bytes == sum(12 + 8 * step for step in range(8)) * MIB
    assert tuning.defaults.fits
    assert tuning.best.peak_reserved_bytes <= 80 * MIB
    assert tuning.saved_peak_bytes == tuning.defaults.peak_reserved_bytes - tuning.best.peak_reserved_bytes
    shown = replay(
        requests, options=parse(tuning.best.alloc_conf, "2.13"), capacity_bytes=device.total_memory_bytes
    )
    assert shown.peak_reserved.bytes == tuning.best.peak_reserved_bytes
    assert tuning.best.environment_line == f"export PYTORCH_CUDA_ALLOC_CONF={tuning.best.alloc_conf}"
    outcomes = [
        (o.peak_reserved_bytes, o.retries, o.device_allocations, o.fragmentation_bytes) for o in tuning.ranked
    ]
    assert outcomes[1:] == sorted(set(outcomes[1:]), key=lambda outcome: outcome[:3])


def test_of_settings_that_need_about_the_same_the_simplest_leads() -> None:
    random = np.random.default_rng(3)
    begin = random.integers(0, 1000, 300)
    end = begin + random.integers(1, 300, 300)
    sizes = np.exp2(random.uniform(18, 25, 300)).astype(np.int64)
    first, *others = search(make_requests(begin, end, sizes), gpu(4 << 30), "2.13").ranked
    least = others[0].peak_reserved_bytes
    assert least < first.peak_reserved_bytes <= 1.005 * least
    assert first.alloc_conf.count(":") < others[0].alloc_conf.count(":")


@pytest.mark.parametrize("free_mib", [4096, 90, 30])
def test_the_smallest_capacity_works_and_a_page_less_does_not(free_mib: int) -> None:
    requests, device = growing(), gpu(free_mib * MIB)
    tuning = search(requests, device, "2.13")
    for outcome in (tuning.defaults, *tuning.ranked):
        assert works(requests, device, outcome, outcome.smallest_capacity_bytes)
        assert not works(requests, device, outcome, outcome.smallest_capacity_bytes - 2 * MIB)


def test_nothing_helps_a_job_that_wastes_nothing() -> None:
    tuning = search(steady(), gpu(4 << 30), "2.13")
    assert (tuning.best, tuning.saved_peak_bytes, tuning.saved_capacity_bytes) == (None, 0, 0)
    assert tuning.defaults.fragmentation_bytes == 0
    assert tuning.fitting == tuning.candidates


def test_what_fits_nowhere_is_ranked_by_the_smallest_gpu() -> None:
    tuning = search(growing(), gpu(30 * MIB), "2.13")
    assert (tuning.fitting, tuning.defaults.fits) == (0, False)
    capacities = [outcome.smallest_capacity_bytes for outcome in tuning.ranked]
    assert capacities == sorted(capacities)
    assert all(not outcome.fits for outcome in tuning.ranked)


def test_an_invalid_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="torch version"):
        search(steady(), gpu(4 << 30), "1.4")
