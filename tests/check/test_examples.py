"""The examples for continuous integration: their files are read, and what they say is run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from check.samples import GPT2, write
from command_line import xmem_fast
from xmem.gate.spec import read_jobs

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "examples" / "ci" / "github-workflow.yml"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
JOBS = ROOT / "examples" / "ci" / "xmem.toml"


def run(command: str) -> Result:
    program, *arguments = shlex.split(command)
    assert program == "xmem-fast"
    return xmem_fast(*arguments)


def steps() -> list[dict]:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert {"pull_request", "push"} == set(workflow[True]), "YAML reads the key `on` as a boolean"
    return workflow["jobs"]["check"]["steps"]


def commands() -> list[str]:
    return [step["run"] for step in steps() if step.get("run", "").startswith("xmem-fast ")]


def hooks() -> dict[str, dict]:
    return {hook["id"]: hook for hook in yaml.safe_load(HOOKS.read_text())}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the example's scripts and jobs, as a runner of GitHub has it."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(JOBS, tmp_path / "xmem.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    return tmp_path


def test_the_workflow_uploads_what_it_writes():
    assert len(commands()) == 1
    written = shlex.split(commands()[0])[-1]
    upload = next(step for step in steps() if "upload-sarif" in step.get("uses", ""))
    assert upload["with"]["sarif_file"] == written
    assert upload["if"].startswith("always()"), "findings are uploaded when the check has failed"


def test_the_jobs_name_scripts_that_are_there():
    for job in read_jobs(JOBS):
        assert (ROOT / job.source.arguments[1]).is_file()


@pytest.mark.nightly
def test_the_commands_of_the_workflow_run(repository):
    for command in commands():
        result = run(command)
        assert result.exit_code == 0, result.output
    log = json.loads((repository / "xmem.sarif").read_text())
    assert log["runs"][0]["results"] == []
    assert (repository / "summary.md").read_text().count("| passed |") == 2
    # Captured once more, the jobs need the same to the byte: their baselines allow no growth.
    kept = "xmem-fast check --job gpt2 --baseline baselines --max-growth 0"
    assert run(f"{kept} --update-baseline").exit_code == 0
    first = (repository / "baselines" / "gpt2.json").read_text()
    again = run(kept)
    assert ", 0 B against baselines/gpt2.json" in again.stdout
    assert run(f"{kept} --update-baseline").exit_code == 0
    assert (repository / "baselines" / "gpt2.json").read_text() == first
    tight = run("xmem-fast check baselines/gpt2.json --budget 1MiB --format github")
    assert tight.exit_code == 1
    assert "::error file=examples/train_gpt2.py,line=" in tight.stdout


def test_hooks_have_what_pre_commit_requires():
    assert set(hooks()) == {"xmem-check", "xmem-check-estimates"}
    for hook in hooks().values():
        assert {"id", "name", "entry", "language"} <= set(hook)
    assert hooks()["xmem-check"]["pass_filenames"] is False


def test_the_entries_of_the_hooks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "estimates" / "gpt2.json", GPT2)
    (tmp_path / "xmem.toml").write_text(
        '[check.jobs.gpt2]\nestimate = "estimates/gpt2.json"\nbudget = "4GiB"\n'
    )
    assert run(hooks()["xmem-check"]["entry"]).exit_code == 0
    over = f"{hooks()['xmem-check-estimates']['entry']} --budget 3GiB estimates/gpt2.json"
    assert run(over).exit_code == 1


def test_the_example_of_the_documentation_is_read(tmp_path):
    text = (ROOT / "docs" / "commands" / "check.md").read_text()
    (tmp_path / "xmem.toml").write_text(text.partition("```toml\n")[2].partition("```")[0])
    gpt2, resnet = read_jobs(tmp_path / "xmem.toml")
    assert gpt2.asked.limits.budget_bytes == 10 << 30
    assert (gpt2.asked.gpus, resnet.asked.gpus) == (("rtx-3060",), ("t4", "a10"))
