"""What every command prints with ``--json`` follows the schema that ``xmem-fast schema`` prints of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator

from every_command import calls, write_files
from xmem.cli.json_outputs import names, output_schema, version_of
from xmem.cli.main import app

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "validation"


def closed(schema: Any) -> Any:
    """The same schema, but an object has no keys that it does not list."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(each) for key, each in schema.items()}
    return {**inner, "additionalProperties": False} if "properties" in schema else inner


def faults_of(name: str, printed: str) -> list[str]:
    found = Draft202012Validator(closed(output_schema(name))).iter_errors(json.loads(printed))
    return [f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in found]


def xmem_fast(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xmem.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", names())
def test_it_is_a_schema_with_a_version(name: str) -> None:
    schema = output_schema(name)
    Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema_version"]["const"] == version_of(name)
    assert "schema_version" in schema["required"]
    assert schema["$id"] == f"urn:xmem-fast:{name}:{version_of(name)}"


def test_a_schema_refuses_what_it_does_not_describe(tmp_path: Path) -> None:
    printed = json.loads(xmem_fast("gpus", "h100", "--json", folder=tmp_path).stdout)
    assert faults_of("gpus", json.dumps(printed)) == []
    assert faults_of("gpus", json.dumps({**printed, "schema_version": 0}))
    assert faults_of("gpus", json.dumps({**printed, "unheard_of": 1}))
    del printed["gpu"]["usable_bytes"]
    assert faults_of("gpus", json.dumps(printed))


def test_the_command_lists_and_prints_them(tmp_path: Path) -> None:
    listed = xmem_fast("schema", folder=tmp_path).stdout
    assert [line.split()[0] for line in listed.splitlines()[1:]] == list(names())
    assert json.loads(xmem_fast("schema", "diff", folder=tmp_path).stdout) == output_schema("diff")
    assert xmem_fast("schema", "difference", folder=tmp_path).returncode == 2


def test_every_command_with_json_has_a_schema() -> None:
    commands: Any = typer.main.get_command(app)
    with_json = {
        name
        for name, command in commands.commands.items()
        if any("--json" in option.opts for option in command.params)
    }
    assert with_json - set(names()) == set()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_command_prints_what_its_schema_says(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_files(tmp_path)
    seen = set()
    faults = []
    for call in calls():
        if call.json_after is None:
            continue
        done = xmem_fast(*call.with_json, folder=tmp_path)
        assert done.returncode in call.statuses, f"{call.arguments}\n{done.stderr[-2000:]}"
        name = call.schema or call.command
        seen.add(name)
        faults += faults_of(name, done.stdout)
    assert faults == []
    # Judged by other tests, made from the network, and made on a CUDA build of torch.
    assert set(names()) - seen == {"validate", "phantom-env", "occupancy-sweep"}


def test_measurements_of_real_gpus(tmp_path: Path) -> None:
    results = ROOT / "bench" / "gpu" / "results"
    if not results.is_dir():
        pytest.skip("there are no measurements in this checkout")
    done = xmem_fast("validate", str(results), "--list", "--json", folder=tmp_path)
    assert json.loads(done.stdout)["measurements"]
    assert faults_of("validate-list", done.stdout) == []


def test_the_scorecard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RUNS))
    from run_samples import estimates_file, runs_file

    rows = (
        "phantom,4080000000,false,0.5,,,,",
        "phantom,,,,,,not captured,",
        "phantom,11000000000,true,0.5,,,,",
    )
    arguments = ("--runs", str(runs_file(tmp_path)), "--estimates", str(estimates_file(tmp_path, *rows)))
    done = xmem_fast("validate", *arguments, "--json", folder=tmp_path)
    card = json.loads(done.stdout)
    assert card["rows"]
    assert card["rows_without_estimate"]
    assert faults_of("validate", done.stdout) == []
