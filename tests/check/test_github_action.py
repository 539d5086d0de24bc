"""Steps of the action, run as a runner of GitHub does: on a pull request that needs more than its base."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from check.samples import GPT2, grown, write

ROOT = Path(__file__).parents[2]
JOBS = '[check]\nbudget = "{budget}"\n[check.jobs.gpt2]\nestimate = "gpt2.json"\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    return folder


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=Someone", "-c", "user.email=someone@example.org"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "A change")
    return git(folder, "rev-parse", "HEAD")


def run_check(repository: Path, base: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the step `check` of action.yml; returns how it ended, and the comment."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = next(step for step in action["runs"]["steps"] if step.get("id") == "check")
    assert "${{" not in step["run"], "inputs in the text of a command would be code"
    temporary = repository.parent / "runner"
    temporary.mkdir(exist_ok=True)
    outputs = temporary / "outputs"
    ended = subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        cwd=repository,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_ACTIONS": "true",
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_STEP_SUMMARY": str(temporary / "summary.md"),
            "RUNNER_TEMP": str(temporary),
            "XMEM_CONFIG": "",
            "XMEM_ARGUMENTS": "--metric allocated",
            "XMEM_BASE": base,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert outputs.is_file(), ended.stderr
    name, _, file = outputs.read_text().strip().partition("=")
    assert name == "comment-file"
    return ended, Path(file).read_text()


def test_the_comment_compares_with_the_base_and_the_step_fails_over_budget(repository: Path) -> None:
    write(repository / "gpt2.json", GPT2)
    (repository / "xmem.toml").write_text(JOBS.format(budget="4GiB"))
    base = commit(repository)
    passed, comment = run_check(repository, base)
    assert passed.returncode == 0, passed.stderr
    assert "| none | passed |" in comment

    write(repository / "gpt2.json", grown(GPT2, 100, module="model", line="train.py:7"))
    (repository / "xmem.toml").write_text(JOBS.format(budget="1GiB"))
    commit(repository)
    (repository.parent / "runner" / "outputs").unlink()
    failed, comment = run_check(repository, base)
    assert failed.returncode == 1
    assert "+100.00 MiB (+" in comment
    assert "**failed**" in comment
    assert "over the budget of 1.00 GiB" in comment
    assert "::error" in failed.stdout
    assert git(repository, "worktree", "list").count("\n") == 0, "the base's tree is removed"


def test_a_base_without_jobs_leaves_its_column_empty(repository: Path) -> None:
    (repository / "README").write_text("no jobs yet")
    base = commit(repository)
    write(repository / "gpt2.json", GPT2)
    (repository / "xmem.toml").write_text(JOBS.format(budget="4GiB"))
    commit(repository)
    passed, comment = run_check(repository, base)
    assert passed.returncode == 0
    assert "|  |" in comment.splitlines()[4]
    assert "passed" in comment
