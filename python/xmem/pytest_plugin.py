"""The pytest plugin: tests that fail when their body needs too much GPU memory (``docs/commands/check.md``).

Every pytest run loads this module, so its imports are delayed until a test needs them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xmem.estimation.estimate import Estimate
    from xmem.gate.limits import Limits
    from xmem.recording import Recorder

_MARK = "xmem_budget"
_SIGNATURE = (
    'xmem_budget(budget=None, *, gpu=None, metric="device_peak", baseline=None, max_growth=None): '
    "fail the test when its body needs more GPU memory than the budget, the GPU or the baseline has"
)
_ESTIMATES = pytest.StashKey[list["Estimate"]]()
_NAME_LENGTH = 100


RecordBlock = Callable[..., AbstractContextManager["Recorder"]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("xmem", "GPU memory (xmem-fast)")
    group.addoption(
        "--xmem-report",
        metavar="FOLDER",
        help="write the estimate of every test that has one to this folder, as JSON",
    )
    group.addoption(
        "--xmem-update-baselines",
        action="store_true",
        help="write the baselines of xmem_budget instead of comparing with them",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _SIGNATURE)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse invalid markers before any test runs."""
    for item in items:
        mark = item.get_closest_marker(_MARK)
        if mark is None:
            continue
        _budget_of_mark(mark, config, item.nodeid)
        if not _has_body(item):
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.{_MARK} needs a test function; "
                "methods of unittest.TestCase and other kinds of tests cannot be recorded"
            )


def _has_body(item: pytest.Item) -> bool:
    """Return whether pytest itself calls the test's function."""
    import unittest

    return isinstance(item, pytest.Function) and not (item.cls and issubclass(item.cls, unittest.TestCase))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run the body of a marked test under ``xmem.record``."""
    mark = pyfuncitem.get_closest_marker(_MARK)
    if mark is None:
        return (yield)
    budget = _budget_of_mark(mark, pyfuncitem.config, pyfuncitem.nodeid)
    with _recording(pyfuncitem, gpu=budget.gpu) as recorder:
        result = yield
    _hold(pyfuncitem, recorder.estimate, budget)
    return result


@pytest.fixture
def xmem_recorder(request: pytest.FixtureRequest) -> RecordBlock:
    """Record a part of a test: ``with xmem_recorder(gpu="rtx-3060") as recorder: ...``.

    Takes the arguments of ``xmem.record``; ``recorder.estimate`` is available after the block, and
    ``--xmem-report`` writes it to a file.
    """

    def record(**options: Any) -> AbstractContextManager[Recorder]:
        return _recording(request.node, **options)

    return record


@pytest.fixture
def xmem_budget(request: pytest.FixtureRequest) -> RecordBlock:
    """Limit a part of a test to a budget: ``with xmem_budget("10GiB", gpu="rtx-3060"): ...``.

    Takes the arguments of the marker of that name, and fails the test at the end of the block.
    """

    @contextmanager
    def budget(*positional: Any, **options: Any) -> Iterator[Recorder]:
        held_to = _budget(positional, options, request.config)
        with _recording(request.node, gpu=held_to.gpu) as recorder:
            yield recorder
        _hold(request.node, recorder.estimate, held_to)

    return budget


@dataclass(frozen=True)
class _Budget:
    """Budget of a block."""

    limits: Limits
    gpu: str | None
    baseline: Path | None


def _budget_of_mark(mark: pytest.Mark, config: pytest.Config, test: str) -> _Budget:
    """Return the budget that a marker sets.

    Raises:
        pytest.UsageError: The marker is invalid; the error names the test.
    """
    from xmem.errors import ConfigError

    try:
        return _budget(mark.args, mark.kwargs, config)
    except ConfigError as error:
        raise pytest.UsageError(f"{test}: @pytest.mark.{_MARK}: {error}") from None


def _budget(positional: tuple[Any, ...], options: Mapping[str, Any], config: pytest.Config) -> _Budget:
    """Parse the arguments of the marker and of the fixture.

    Raises:
        ConfigError: The arguments are invalid.
    """
    from xmem.errors import ConfigError
    from xmem.gate.spec import limits_of

    given = {**dict(zip(("budget",), positional, strict=False)), **options}
    unknown = set(given) - {"budget", "gpu", "metric", "baseline", "max_growth"}
    if len(positional) > 1 or unknown or (positional and "budget" in options):
        raise ConfigError(
            f"the arguments {', '.join([*map(repr, positional), *sorted(options)])} are invalid",
            f"use {_SIGNATURE.partition(':')[0]}",
        )
    for name, value in given.items():
        allowed = int | str | Path if name == "baseline" else int | str
        if value is not None and (not isinstance(value, allowed) or isinstance(value, bool)):
            raise ConfigError(
                f"{name}={value!r} is invalid", 'use text such as "10GiB", or a number of bytes'
            )
    text = {name: None if value is None else str(value) for name, value in given.items()}
    limits = limits_of(
        budget=text.get("budget"), metric=text.get("metric"), max_growth=text.get("max_growth")
    )
    gpu, baseline = text.get("gpu"), text.get("baseline")
    if limits.budget_bytes is None and gpu is None and baseline is None:
        raise ConfigError("no limit was given", "pass a budget, a gpu or a baseline")
    if gpu is not None:
        from xmem.devices.gpus import find_device

        find_device(gpu)
    return _Budget(limits, gpu, None if baseline is None else config.rootpath / baseline)


@contextmanager
def _recording(item: pytest.Item, **options: Any) -> Iterator[Recorder]:
    """Record a block of a test, and write its estimate to a file if requested."""
    __tracebackhide__ = True
    import xmem
    from xmem.errors import XmemError

    with xmem.record(**options) as recorder:
        yield recorder
    try:
        estimate = recorder.estimate
    except XmemError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    estimates = item.stash.setdefault(_ESTIMATES, [])
    estimates.append(estimate)
    item.user_properties.append(("xmem_device_peak_bytes", estimate.device_peak_bytes))
    folder = item.config.getoption("--xmem-report")
    if folder is not None:
        _keep(estimate, Path(folder), item.nodeid, len(estimates))


def _keep(estimate: Estimate, folder: Path, test: str, number: int) -> None:
    """Write an estimate to its own file: names of tests may be equal without their punctuation."""
    readable = re.sub(r"[^\w.-]+", "_", test)[-_NAME_LENGTH:].strip("_")
    digest = hashlib.sha256(f"{test}\0{number}".encode()).hexdigest()[:8]
    from xmem.estimation.estimate_file import write_estimate

    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_estimate(folder / f"{readable}-{digest}.json", estimate)
    except OSError as error:
        raise pytest.UsageError(f"--xmem-report={folder} cannot be written: {error.strerror}") from error


def _hold(item: pytest.Item, estimate: Estimate, budget: _Budget) -> None:
    """Fail the test when the estimate is over budget."""
    __tracebackhide__ = True
    from xmem.errors import XmemError
    from xmem.gate.baseline import read_baseline, write_baseline
    from xmem.gate.judge import judge

    baseline = None
    try:
        if budget.baseline is None:
            pass
        elif item.config.getoption("--xmem-update-baselines"):
            write_baseline(budget.baseline, estimate)
        else:
            baseline = read_baseline(budget.baseline, writer="pytest --xmem-update-baselines")
    except XmemError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    outcome = judge(item.name, item.nodeid, estimate, budget.limits, baseline)
    if not outcome.passed:
        from xmem.reports.gate.text import plain

        pytest.fail(plain([outcome]), pytrace=False)
