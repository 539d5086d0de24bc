"""Liger-Kernel's benchmark table: the peak of allocated memory of single operators, losses and layers.

The project's history has every version of its tables. A row's code is that of the commit that added the row,
and its script is the one of ``benchmark/scripts`` that names the row's kernel.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from scoreboard.answers import Answers
from scoreboard.laboratory import HERE, Laboratory
from scoreboard.rows import MIB, Row, read_sources
from xmem.errors import ConfigError

NAME = "liger"
FILE = "liger_benchmark_memory.csv"
_REPOSITORY = "linkedin/Liger-Kernel"
# Benchmarks import losses of the tests, but not the data there.
_PATHS = ("src", "benchmark", ":(glob)test/**/*.py")
_CARDS = {
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 NVL": "h100",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA B200": "b200",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
}
_MODEL = re.compile(r"(\S+) \((.*)\)")
_CONFIG = re.compile(r"mode=(\S*) ([^=]+)=(\S+) ?(.*)")
_MEASURED = re.compile(r"measured (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
# The table has four decimals of a MiB, written from a float.
_ROUNDING_BYTES = 1024
# These tables compare implementations of the library's kernels: their scripts run once for each, and the
# library's provider gets its name. The first one is what the library takes by itself.
_COMPARED = {
    "all_benchmark_data_cutile": {"": "liger_triton", "cutile": "liger_cutile"},
    "all_benchmark_data_cutedsl": {"": "liger_triton", "cutedsl": "liger_cutedsl"},
}


def rows(data: Path) -> Iterator[Row]:
    """The published peaks; a job is a kernel on a card, measured on one day, in one of the tables."""
    for source in read_sources(data / FILE):
        model, config = _MODEL.fullmatch(source.model), _CONFIG.fullmatch(source.config)
        measured = _MEASURED.search(source.notes)
        if model is None or config is None or measured is None or source.gpu not in _CARDS:
            continue
        kernel, provider = model.groups()
        mode, x_name, x, rest = config.groups()
        yield Row(
            project=NAME,
            job=f"{kernel}/{_CARDS[source.gpu]}/{measured[1][:10]}/{Path(source.path).stem}",
            item=_item(provider, mode, x_name, x, rest),
            kind="operators of several compilers" if Path(source.path).stem in _COMPARED else "operators",
            gpu=_CARDS[source.gpu],
            torch="",
            quantity="allocated",
            truth=float(source.value.split()[0]) * MIB,
            rounding=_ROUNDING_BYTES,
            is_rebuilt=True,
        )


def run(row: Row, laboratory: Laboratory) -> Answers:
    """Run the script of the row's commit on the row's card."""
    kernel, _, day, table = row.job.split("/")
    path = f"benchmark/data/{table}.csv"
    commit = _added(laboratory, path)[kernel, row.gpu, day]
    setting = _setting(kernel, commit, day)
    script = setting.get("script", commit)
    code = laboratory.code(_REPOSITORY, script, _PATHS)
    own = laboratory.code(_REPOSITORY, setting.get("code", script), _PATHS)
    python = laboratory.python(setting["environment"])
    points: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="scoreboard-") as folder:
        output, times = Path(folder) / "rows.json", Path(folder) / "times.json"
        times.write_text(json.dumps(_published_times(laboratory, path, commit)))
        for implementation, arguments in product(_COMPARED.get(table, {"": "liger"}), setting["runs"]):
            output.unlink(missing_ok=True)
            command = [python, HERE / "scripts" / "liger_rows.py", output, _script(code, kernel)]
            command += [times if setting["times"] == "published" else "short", setting["modes"]]
            command += [setting["garbage"], *arguments]
            ran = laboratory.on_phantom(
                [str(part) for part in command],
                row.gpu,
                variables={
                    "PYTHONPATH": f"{own / 'src'}:{code}",
                    "LIGER_KERNEL_IMPL": implementation,
                    # How fast Triton's kernels would be changes nothing, and some take ten minutes of it.
                    "DISABLE_PTXAS_OPT": "1",
                },
            )
            found = json.loads(output.read_text()) if output.exists() else [{"fatal": ran.problem}]
            for point in found if table in _COMPARED else ():
                rename = setting["renamed"], _COMPARED[table][implementation]
                point["provider"] = _renamed(point.get("provider", ""), *rename)
            points += found
    figures: dict[str, float] = {}
    problems, fatal = {}, ""
    for point in points:
        if "fatal" in point:
            fatal = point["fatal"]
            continue
        if point["kernel"] != kernel:
            continue  # a script may measure several
        item = _item(
            point["provider"], point["mode"] or "", point["x_name"], str(point["x"]), point["config"]
        )
        if "mib" in point:
            figures.setdefault(item, point["mib"] * MIB)  # as in the table, which keeps the first run's
        else:
            problems[item] = point["error"]
    return Answers(figures, problems, fatal if not figures else "", laboratory.torch(setting["environment"]))


def _renamed(provider: str, rule: str, name: str) -> str:
    """The library's provider under the name of its implementation.

    Args:
        provider: As the script has it.
        rule: ``whole`` if only ``liger`` itself is renamed, ``beginning`` if ``liger-fp32`` is too.
        name: The implementation's.
    """
    if provider == "liger" or (rule == "beginning" and provider.startswith("liger")):
        return name + provider.removeprefix("liger")
    return provider


def _item(provider: str, mode: str, x_name: str, x: str, config: str) -> str:
    """One name for a point, however numbers and settings are written."""
    try:
        number = f"{float(x):g}"
    except ValueError:
        number = x
    settings = json.dumps(json.loads(config or "{}"), sort_keys=True)
    return f"{provider} {mode if mode != 'None' else ''} {x_name}={number} {settings}"


@cache
def _added(laboratory: Laboratory, path: str) -> dict[tuple[str, str, str], str]:
    """The first commit whose table has a row, for each kernel, card and day of measurement."""
    added: dict[tuple[str, str, str], str] = {}
    for commit in laboratory.git(_REPOSITORY, "log", "--format=%H", "--reverse", "--", path).split():
        for line in _table(laboratory, path, commit):
            if line["metric_name"] == "memory" and line["gpu_name"] in _CARDS:
                measured = (line["kernel_name"], _CARDS[line["gpu_name"]], line["timestamp"][:10])
                added.setdefault(measured, commit)
    return added


@cache
def _table(laboratory: Laboratory, path: str, commit: str) -> tuple[dict[str, str], ...]:
    return tuple(csv.DictReader(io.StringIO(laboratory.git(_REPOSITORY, "show", f"{commit}:{path}"))))


def _published_times(laboratory: Laboratory, path: str, commit: str) -> dict[str, float]:
    return {
        "|".join(
            line[name]
            for name in ("kernel_name", "kernel_provider", "kernel_operation_mode", "x_name", "x_value")
        ): float(line["y_value_50"])
        for line in _table(laboratory, path, commit)
        if line["metric_name"] == "speed"
    }


def _script(code: Path, kernel: str) -> Path:
    """The benchmark script that names a kernel; of several the one with the shortest name."""
    scripts = sorted((code / "benchmark" / "scripts").glob("benchmark_*.py"), key=lambda path: len(path.name))
    quoted = re.compile(f"[\"']{re.escape(kernel)}[\"']")
    for path in scripts:
        if quoted.search(path.read_text()):
            return path
    short = kernel.removeprefix("fused_linear_")
    names = {kernel, short, kernel.rpartition("_")[0], short.rpartition("_")[0]}
    for path in scripts:
        if path.stem.removeprefix("benchmark_") in names:
            return path
    raise ConfigError(f"no benchmark script of {code} names {kernel}", "look for it in the next commit")


def _setting(kernel: str, commit: str, day: str) -> dict[str, Any]:
    """What rows need beside the defaults, by kernel, commit and day of measurement; later lines of
    ``liger.toml`` win."""
    table = tomllib.loads((HERE / "projects" / "liger.toml").read_text())
    setting: dict[str, Any] = dict(table["default"])
    for line in table["settings"]:
        fits = commit.startswith(line.get("commit", "")) and day.startswith(line.get("day", ""))
        if line["kernel"] in ("*", kernel) and fits:
            setting |= line
    return setting
