"""The answer for GitHub and for code scanners."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from check.samples import GPT2, TOO_LARGE, grown
from xmem.errors import CaptureError
from xmem.gate.baseline import Baseline
from xmem.gate.judge import CheckOutcome, Rule, failed_outcome, judge
from xmem.gate.limits import Limits
from xmem.reports.gate import github
from xmem.reports.gate.sarif import sarif_log

OVER = Limits(budget_bytes=1 << 30)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the lines of the samples in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("examples/train_gpt2.py", "a file, 100%:1.py", "trace.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n" * 200)
    return tmp_path


def outcomes() -> list[CheckOutcome]:
    """One of each kind."""
    after = grown(GPT2, 100, module="GPT.head", line="a file, 100%:1.py:7")
    return [
        judge("fine", "trace.json", GPT2, Limits()),
        judge("budget", "trace.json", GPT2, OVER),
        judge("gpu", "trace.json", TOO_LARGE, Limits()),
        judge("grew", "trace.json", after, Limits(), Baseline("baseline.json", GPT2)),
        failed_outcome(
            "broken", "python train.py", OVER, CaptureError("it failed", 1, "ValueError: a::b\nlast")
        ),
    ]


# What the specification requires of the objects that are written (docs.oasis-open.org/sarif/sarif/v2.1.0, the
# sections named), closed: a property that it does not have is a mistake.
def _object(required: str, optional: str = "", **properties: object) -> dict:
    names = [*required.split(), *optional.split()]
    return {
        "type": "object",
        "required": required.split(),
        "properties": {name: properties.get(name, {}) for name in names},
        "additionalProperties": False,
    }


_TEXT = _object("text", text={"type": "string", "minLength": 1})
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_LOCATION = _object(  # 3.28, 3.29, 3.4, 3.30
    "physicalLocation",
    physicalLocation=_object(
        "artifactLocation region",
        artifactLocation=_object(
            "uri uriBaseId",
            uri={"type": "string", "pattern": "^[A-Za-z0-9._~%/-]+$"},
            uriBaseId={"type": "string"},
        ),
        region=_object("startLine", startLine={"type": "integer", "minimum": 1}),
    ),
)
_RULE = _object(  # 3.49
    "id name shortDescription fullDescription help defaultConfiguration properties",
    id={"type": "string"},
    name={"type": "string", "pattern": "^([A-Z][a-z]+)+$"},
    shortDescription=_TEXT,
    fullDescription=_TEXT,
    help=_TEXT,
    defaultConfiguration=_object("level", level=_LEVEL),
    properties=_object("tags", tags={"type": "array", "uniqueItems": True}),
)
_RESULT = _object(  # 3.27
    "ruleId ruleIndex level message locations partialFingerprints properties",
    ruleId={"type": "string"},
    ruleIndex={"type": "integer", "minimum": 0},
    level=_LEVEL,
    message=_TEXT,
    locations={"type": "array", "items": _LOCATION},
    partialFingerprints={"type": "object", "additionalProperties": {"type": "string"}},
)
_DRIVER = _object(  # 3.19
    "name semanticVersion rules",
    name={"type": "string"},
    semanticVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+"},
    rules={"type": "array", "items": _RULE, "uniqueItems": True},
)
_RUN = _object(  # 3.14, 3.17, 3.20
    "tool automationDetails columnKind invocations results",
    tool=_object("driver", driver=_DRIVER),
    automationDetails=_object("id", id={"type": "string"}),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    invocations={
        "type": "array",
        "items": _object("executionSuccessful", executionSuccessful={"type": "boolean"}),
    },
    results={"type": "array", "items": _RESULT},
)
SARIF = _object(  # 3.13
    "$schema version runs",
    version={"const": "2.1.0"},
    runs={"type": "array", "items": _RUN},
    **{"$schema": {"type": "string", "format": "uri"}},
)


class TestSarif:
    def test_it_has_what_the_specification_requires(self):
        log = json.loads(json.dumps(sarif_log(outcomes(), "0.1.0")))
        Draft202012Validator(SARIF).validate(log)
        run = log["runs"][0]
        assert [result["ruleId"] for result in run["results"]] == [
            "over-budget", "does-not-fit", "grew", "no-answer",
        ]  # fmt: skip
        for result in run["results"]:
            assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert not run["invocations"][0]["executionSuccessful"]

    def test_a_passing_run_has_no_results(self):
        log = sarif_log(outcomes()[:1], "0.1.0")
        Draft202012Validator(SARIF).validate(log)
        assert log["runs"][0]["results"] == []
        assert log["runs"][0]["invocations"] == [{"executionSuccessful": True}]

    def test_locations_are_relative_and_escaped(self):
        found = [result["locations"] for result in sarif_log(outcomes(), "0.1.0")["runs"][0]["results"]]
        places = [
            (location["artifactLocation"]["uri"], location["region"]["startLine"])
            for locations in found
            for location in (entry["physicalLocation"] for entry in locations)
        ]
        assert places == [
            ("examples/train_gpt2.py", 83),
            ("examples/train_gpt2.py", 83),
            ("a%20file%2C%20100%25%3A1.py", 7),
        ]
        assert found[3] == [], "neither a line nor a script of the repository is known"

    def test_a_script_that_could_not_be_captured_is_the_place(self, folder):
        (folder / "train.py").write_text("raise SystemExit(1)\n")
        result = sarif_log(outcomes()[4:], "0.1.0")["runs"][0]["results"][0]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "train.py"

    def test_lines_outside_of_the_folder_are_not_marked(self):
        after = grown(GPT2, 9000, module="GPT.head", line="/usr/lib/other.py:7")
        result = sarif_log([judge("grew", "trace.json", after, OVER)], "0.1.0")["runs"][0]["results"][0]
        assert result["locations"][0]["physicalLocation"] == {
            "artifactLocation": {"uri": "trace.json", "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": 1},
        }

    def test_a_finding_stays_the_same_one_when_its_figures_change(self):
        def fingerprint(name: str, limits: Limits, mib: int) -> str:
            estimate = grown(GPT2, mib, module="GPT.head", line="examples/train_gpt2.py:9")
            results = sarif_log([judge(name, "trace.json", estimate, limits)], "0.1.0")["runs"][0]["results"]
            return str(results[0]["partialFingerprints"])

        assert fingerprint("a", OVER, 0) == fingerprint("a", OVER, 5)
        assert fingerprint("a", OVER, 0) != fingerprint("b", OVER, 0)


class TestGithub:
    def test_commands_are_single_lines_with_escaped_values(self):
        lines = github.commands(outcomes()).splitlines()
        assert len(lines) == 4
        assert all(line.startswith("::error ") for line in lines)
        assert "file=a file%2C 100%25%3A1.py,line=7," in lines[2]
        properties, _, message = lines[3].removeprefix("::error ").partition("::")
        assert properties == "title=GPU memory of broken"
        assert message.endswith("The script's last output:%0AValueError: a::b%0Alast")

    def test_nothing_is_said_of_what_passed(self):
        assert github.commands(outcomes()[:1]) == ""

    def test_the_summary_has_a_row_a_job(self):
        summary = github.step_summary(outcomes())
        rows = [line for line in summary.splitlines() if line.startswith(("| fine", "| budget", "| broken"))]
        assert rows == [
            "| fine on RTX 3060 12 GB | passed | device peak 3.43 GiB, fits |",
            "| budget on RTX 3060 12 GB | **failed** | "
            "device peak 3.43 GiB, 343% of the budget of 1.00 GiB, fits |",
            "| broken | **failed** | no answer |",
        ]
        assert "4 of 5 checks failed." in summary

    def test_names_are_no_markup(self):
        after = grown(GPT2, 9000, module="GPT.__init__.<lambda>|x", line="a|b.py:7")
        summary = github.step_summary([judge("grew", "trace.json", after, OVER)])
        assert "| GPT.\\_\\_init\\_\\_.\\<lambda\\>\\|x | 8.79 GiB |" in summary


def test_every_rule_is_described():
    driver = sarif_log([], "0.1.0")["runs"][0]["tool"]["driver"]
    assert [rule["id"] for rule in driver["rules"]] == [rule.value for rule in Rule]
