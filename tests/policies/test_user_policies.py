"""Policies of other packages: the example package installed into a folder, and packages that are broken."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import xmem
from xmem.errors import ConfigError
from xmem.estimation.estimate import Estimate, PolicyRecord
from xmem.orchestration import user_policies
from xmem.testing.trace_builder import TraceBuilder

EXAMPLE = Path(__file__).parent / "example_package"


class Site:
    """A folder on the path, with the packages that a test installs there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, project: str, version: str, entry_points: dict[str, str]) -> None:
        """Write what pip leaves of a package."""
        info = self.folder / f"{project.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n")
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[xmem.policies]", *lines, ""]))

    def install_example(self) -> None:
        project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
        self.install(project["name"], project["version"], project["entry-points"]["xmem.policies"])
        shutil.copytree(EXAMPLE / "example_attention", self.folder / "example_attention")

    def install_broken(self, code: str, name: str = "broken") -> None:
        self.install("xmem-broken", "0.1", {name: "xmem_broken:policy"})
        (self.folder / "xmem_broken.py").write_text(code)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield Site(tmp_path)
    for module in ("example_attention", "xmem_broken"):
        sys.modules.pop(module, None)
    forget()


def forget() -> None:
    user_policies._entry_points.cache_clear()
    user_policies._loaded.cache_clear()


def trained() -> bytes:
    return (
        TraceBuilder()
        .iteration(0, 0, 100)
        .operator("example::attention", 10, 40)
        .alloc(0x10, 1 << 20, 20)
        .free(0x10, 50)
        .annotation("Optimizer.step#SGD.step", 60, 90)
        .bytes()
    )


def record(estimate: Estimate, name: str) -> PolicyRecord:
    return next(policy for policy in estimate.policies if policy.name == name)


def test_packages_that_bring_no_policy_cost_no_look_at_their_metadata(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("other", "1", {})
    next(site.folder.glob("*.dist-info/entry_points.txt")).write_text(
        "[console_scripts]\nother = other:main\n"
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: pytest.fail("all packages are read"))
    assert xmem.estimate(trained()).peak.requested_bytes == 1 << 20


def in_egg_info(site: Site) -> None:
    """Install as `setup.py develop` does."""
    info = site.folder / "example.egg-info"
    site.install_example()
    next(site.folder.glob("*.dist-info")).rename(info)
    (info / "METADATA").rename(info / "PKG-INFO")


def in_an_egg(site: Site) -> None:
    """Install as `easy_install` did: a folder of its own on the path."""
    egg = site.folder / "example-1.2-py3.egg"
    egg.mkdir()
    sys.path.insert(0, str(egg))
    in_egg_info(site)
    (site.folder / "example.egg-info").rename(egg / "EGG-INFO")


def in_an_archive(site: Site) -> None:
    """Put a wheel on the path, as it is."""
    site.install_example()
    wheel = site.folder / "example.whl"
    info = next(site.folder.glob("*.dist-info"))
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in info.iterdir():
            archive.write(file, f"{info.name}/{file.name}")
    shutil.rmtree(info)
    sys.path.insert(0, str(wheel))


def by_a_finder(site: Site) -> None:
    """Let an import hook tell of it, which has no folder on the path."""
    hidden = site.folder / "hidden"
    hidden.mkdir()
    site.install_example()
    next(site.folder.glob("*.dist-info")).rename(hidden / "example-1.2.dist-info")

    class Finder(importlib.metadata.DistributionFinder):
        def find_spec(self, *_: object) -> None:
            return None

        def find_distributions(self, *_: object) -> list[importlib.metadata.Distribution]:
            return [importlib.metadata.PathDistribution(hidden / "example-1.2.dist-info")]

    sys.meta_path.append(Finder())


@pytest.mark.parametrize("install", [in_egg_info, in_an_egg, in_an_archive, by_a_finder])
def test_a_policy_is_found_however_its_package_is_installed(
    site: Site, monkeypatch: pytest.MonkeyPatch, install: Callable[[Site], None]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    install(site)
    assert xmem.estimate(trained(), gpu="rtx-3060").policies[-1].name == "add_example_workspace"


def test_an_installed_policy_runs_after_the_built_in_ones_and_is_listed_with_its_package(site: Site) -> None:
    site.install_example()
    estimate = xmem.estimate(trained(), gpu="rtx-3060")
    assert estimate.policies[-1].name == "add_example_workspace"
    assert estimate.policies[-1].package == "xmem-example-attention 1.2"
    assert estimate.policies[-1].bytes_at_peak == 1024 * 28  # the RTX 3060 has 28 multiprocessors
    assert estimate.peak.requested_bytes == (1 << 20) + 1024 * 28


def test_it_can_be_switched_off(site: Site) -> None:
    site.install_example()
    estimate = xmem.estimate(trained(), without_policies=["add_example_workspace"])
    assert estimate.peak.requested_bytes == 1 << 20
    assert "add_example_workspace" not in [policy.name for policy in estimate.policies if policy.applied]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("def policy(workload, context): return workload", "has no string attribute 'name'"),
        (
            "class policy:\n  name = description = 'other'\n  def __call__(self, w, c): return w",
            " of xmem-broken 0.1 calls itself other",
        ),
        ("class policy:\n  name = description = 'broken'", "cannot be called"),
    ],
)
def test_one_that_cannot_be_used_is_told_with_its_package_and_entry_point(
    site: Site, code: str, says: str
) -> None:
    site.install_broken(code)
    with pytest.raises(ConfigError) as raised:
        xmem.estimate(trained())
    message = str(raised.value)
    assert "entry point broken = xmem_broken:policy of xmem-broken 0.1" in message
    assert says in message
    assert "--without-policy broken" in message


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ("1 / 0", "policy broken of xmem-broken 0.1 failed (ZeroDivisionError: division by zero)"),
        ("None", "xmem-broken 0.1 returned NoneType instead of a Workload"),
        ("workload.with_columns(size_bytes=-workload.size_bytes)", "blocks of negative size"),
        ("workload.with_columns(size_bytes=workload.size_bytes[:0])", "columns of different lengths"),
    ],
)
def test_one_that_fails_or_gives_no_workload_is_told_as_its_packages_fault(
    site: Site, result: str, says: str
) -> None:
    site.install_broken(
        "class policy:\n  name = description = 'broken'\n"
        f"  def __call__(self, workload, context): return {result}"
    )
    with pytest.raises(ConfigError) as raised:
        xmem.estimate(trained())
    assert says in str(raised.value)


def test_a_broken_one_that_is_switched_off_is_not_even_imported(site: Site) -> None:
    site.install_broken("raise SystemError")
    assert xmem.estimate(trained(), without_policies=["broken"]).peak.requested_bytes == 1 << 20


def test_a_name_that_is_taken_is_refused(site: Site) -> None:
    site.install_broken("", name="resize_dropout_masks")
    with pytest.raises(ConfigError, match=r"entry point resize_dropout_masks of xmem-broken 0\.1"):
        xmem.estimate(trained())
