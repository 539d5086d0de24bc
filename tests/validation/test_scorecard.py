"""The scorecard as a whole: methods side by side, intervals, and runs of the command."""

from __future__ import annotations

import datetime
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from run_samples import MB, RTX_3060, estimates_file, run, runs_file, said
from typer.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from accuracy import accuracy_page
from xmem.cli.main import app
from xmem.errors import ConfigError
from xmem.estimation.calibration import parse
from xmem.reports.accuracy.explanations import Explanation, explain, read_explanations
from xmem.reports.accuracy.scorecard_html import render_html
from xmem.validation.estimates import RowEstimate
from xmem.validation.metrics import judge
from xmem.validation.runs import MeasuredRun
from xmem.validation.scorecard import Scorecard, calibrate, score


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["validate", *map(str, arguments)])


def card_of(errors: dict[str, list[int]], confidence: float = 0.9) -> Scorecard:
    """Runs of 1000 MB by model, estimated with these errors in per cent."""
    runs: list[MeasuredRun] = []
    estimates: list[RowEstimate] = []
    for model, percents in errors.items():
        for batch, percent in enumerate(percents, 1):
            runs.append(run(1000, model=model, batch=batch))
            estimates.append(said(1000 + 10 * percent, oom=False, of=runs[-1]))
    return score(runs, estimates, confidence=confidence)


def test_calibration_leaves_failures_and_one_model_out() -> None:
    runs = [run(1000, model="a"), run(1000, model="b", batch=2), run(9000, model="a", failed=True, batch=3)]
    estimates = [said(800, of=runs[0]), said(1250, of=runs[1]), said(9999, oom=True, of=runs[2])]
    (result,) = score(runs, estimates).ways
    assert calibrate([result])["phantom"]["convolutional"].values == pytest.approx((-0.2, 0.25))
    assert calibrate([result], without_model="a")["phantom"]["convolutional"].values == pytest.approx((-0.2,))


def test_coverage_of_models_that_the_calibration_has_not_seen() -> None:
    # Nine models without error and one whose estimates are a tenth too low: its own rows would cover it.
    errors = {name: [0, 0] for name in "abcdefghi"} | {"low": [-10, -10]}
    held_out = card_of(errors).held_out
    assert held_out.rows == 20
    assert held_out.safe == pytest.approx(18 / 20)
    # The other models' bounds know of it: 1/9 above at rank ceil(19 * 0.9) = 18 of 18.
    assert held_out.median_excess == pytest.approx(1 / 9, abs=1e-6)


def test_methods_side_by_side() -> None:
    runs = [run(2000, xmem_mb=2200, xmem_failed=False)]
    card = score(runs, [said(2020, oom=False), said(1000, way="static")])
    data = card.to_json()
    assert {name: found["median_relative_error"] for name, found in data["methods"].items()} == {
        "phantom": pytest.approx(0.01),
        "xMem": pytest.approx(0.1),
        "static": pytest.approx(0.5),
    }
    (row,) = data["rows"]
    assert row["others"] == {"phantom": 2020 * MB, "xMem": 2200 * MB, "static": 1000 * MB}
    assert (row["way"], row["estimate_bytes"], row["truth_bytes"]) == ("phantom", 2020 * MB, 2000 * MB)


def test_command_prints_json(tmp_path: Path) -> None:
    estimates = estimates_file(
        tmp_path,
        'phantom,4080000000,false,0.5,,,,"{""workspaces"": 12}"',
        "phantom,1960000000,false,0.5,,,,",
        "phantom,11000000000,true,0.5,,,,",
    )
    result = invoke("--runs", runs_file(tmp_path), "--estimates", estimates, "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["median_relative_error"] == pytest.approx(0.02)
    assert data["p95_relative_error"] == pytest.approx(0.02)
    # 1960 MB and the card's context: more than 2000 MB.
    assert data["failures"] == 0
    assert (data["real_ooms"], data["ooms_foreseen"], data["false_ooms"]) == (1, 1, 0)
    assert [row["model"] for row in data["rows"]] == ["VGG16", "me/gpt", "VGG16"]
    assert data["rows"][0]["policies"] == {"workspaces": 12}
    assert data["rows"][0]["gpu"] == RTX_3060
    assert data["methods"]["xMem"]["runs"] == 3
    assert data["methods"]["DNNMem"]["runs"] == 2


def test_command_prints_tables(tmp_path: Path) -> None:
    estimates = estimates_file(tmp_path, "cpu,4080000000,false,0.5,,,,", "cpu,,,,,,not captured,")
    result = invoke("--runs", runs_file(tmp_path), "--estimates", estimates)
    assert result.exit_code == 0
    assert re.search(r"^ours +1 +2\.00%", result.stdout, re.MULTILINE)
    assert "VGG16 SGD 200, GeForce RTX 3060" in result.stdout
    assert "gpt Adam 8, GeForce RTX 3060: not captured" in result.stdout


def test_command_writes_pages_and_a_calibration(tmp_path: Path) -> None:
    estimates = estimates_file(tmp_path, "cpu,4000000000,false,0.5,,,,", "cpu,1000000000,false,0.5,,,a|b,")
    explanations = tmp_path / "why.toml"
    explanations.write_text('[[explanation]]\nmodel = "gpt"\ntext = "half is\\nmissing"\n')
    page, docs, calibration = (tmp_path / name for name in ("card.html", "accuracy.md", "calibration.toml"))
    result = invoke(
        "--runs", runs_file(tmp_path), "--estimates", estimates, "--explanations", explanations,
        "--html", page,
    )  # fmt: skip
    assert result.exit_code == 0
    written = accuracy_page.main(
        [
            *["--runs", str(runs_file(tmp_path)), "--estimates", str(estimates)],
            *["--explanations", str(explanations), "--docs", str(docs), "--calibration", str(calibration)],
        ]
    )
    assert written == 0
    assert "half is missing" in page.read_text()
    text = docs.read_text()
    worst = text.index("gpt Adam 8")
    assert worst < text.index("VGG16 SGD 200")
    assert "a\\|b; half is missing" in text
    assert "<" not in text
    assert parse(calibration.read_text())["cpu"]["other"].values == (1.0,)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--list", "--runs", "x.csv"],
        ["folder", "--runs", "x.csv"],
        ["--runs", "missing.csv", "--estimates", "x.csv"],
        ["--runs", "x.csv", "--ways", "guess"],
        ["--runs", "x.csv", "--confidence", "1"],
    ],
)
def test_usage_errors(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "xmem-fast: " in result.output


def test_bad_file_is_bad_input(tmp_path: Path) -> None:
    result = invoke("--runs", runs_file(tmp_path, "CNN,1"), "--estimates", "x.csv")
    assert result.exit_code == 3
    assert "line 2, column zero_grad_mode must be in every row" in result.output


def test_page_is_whole_and_escaped() -> None:
    card = score([run(1000, model="<b>")], [said(1100)])
    page = render_html(card, [])
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_page_says_why_other_methods_are_silent() -> None:
    runs = [run(1000, batch=1), run(1000, batch=2), run(1000, batch=3)]
    refusal = RowEstimate(runs[1].identity, "tracker", None, note="not this script")
    card = score(runs, [said(1000, of=runs[0], way="tracker"), refusal, said(1000, of=runs[0])])
    page = accuracy_page.render_markdown(card, [])
    assert "- tracker, runs without an estimate: not this script (1); reason unknown (1)" in page


def test_page_is_dated() -> None:
    page = accuracy_page.render_markdown(card_of({"a": [1]}), [], datetime.date(2026, 1, 2))
    assert "Estimates against 1 measured runs, 2026-01-02." in page


def test_explanations_choose_rows() -> None:
    row = judge(run(1000, model="me/gpt", batch=8), said(1100))
    known = [
        Explanation({"model": "gpt", "batch_size": "8"}, "yes"),
        Explanation({"model": "me/gpt", "gpu": "RTX 3060"}, "this too"),
        Explanation({"model": "gpt", "batch_size": "9"}, "no"),
        Explanation({"way": "cpu"}, "no"),
    ]
    assert explain(row, known) == "yes; this too"


@pytest.mark.parametrize(
    "text",
    [
        "[[explanation]]\ntext = 'x'\n",
        "[[explanation]]\nmodel = 'x'\n",
        "[[explanation]]\nmodle = 'x'\ntext = 'x'\n",
        "{",
    ],
)
def test_bad_explanations(tmp_path: Path, text: str) -> None:
    path = tmp_path / "why.toml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_explanations(path)


def test_plots_need_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmem.reports.accuracy.scorecard_plots.find_spec", lambda _: None)
    result = invoke(
        "--runs", runs_file(tmp_path), "--estimates", estimates_file(tmp_path), "--plots", tmp_path / "p"
    )
    assert result.exit_code == 2
    assert "xmem-fast[plots]" in result.output
    assert "No plots" in render_html(card_of({"a": [1]}), [])


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_plots_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "plots"
    result = invoke(
        "--runs", runs_file(tmp_path), "--plots", folder,
        "--estimates", estimates_file(tmp_path, "cpu,4080000000,false,,,,,"),
    )  # fmt: skip
    assert result.exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "errors_by_method.png",
        "errors_by_model.png",
        "quadrants.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())


def test_runs_without_estimates_are_told_how_to_get_them(tmp_path: Path) -> None:
    result = invoke("--runs", runs_file(tmp_path))
    assert result.exit_code == 2
    assert "pass --estimates FILE; in a checkout, `make accuracy RUNS=FILE.csv` makes them" in result.output
