"""Every command that the site's pages show in ``sh`` blocks is run, page by page, in a folder of its own.

A block after ``<!-- not run: REASON -->`` is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nightly import most_nightly

pytest.importorskip("torch")

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "index.md", *sorted((DOCS / "how_to").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- not run: (?P<reason>[^>]+) -->\n)?```sh\n(?P<commands>.*?)```", re.DOTALL)

SCRIPT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
size = parser.parse_args().batch_size
model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 8)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.zeros(size * 1024, 256, device="cuda")).sum().backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    model(torch.zeros(8192, 256, device="cuda"))
"""
JOBS = '[check]\nbudget = "8GiB"\n[check.jobs.small]\ncommand = ["python", "train.py"]\n'


def commands_of(page: Path) -> list[str]:
    blocks = [found["commands"] for found in BLOCK.finditer(page.read_text()) if found["reason"] is None]
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]


def test_pages_with_commands_are_found() -> None:
    assert sum(1 for page in PAGES if commands_of(page)) >= 7


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", most_nightly(page for page in PAGES if commands_of(page)), ids=lambda page: page.stem
)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "xmem.toml").write_text(JOBS)
    (tmp_path / "baselines").mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands_of(page):
        ran = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stderr[-2000:]}"
