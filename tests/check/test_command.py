"""`xmem-fast check` as typed: what it prints, writes and exits with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import Result

from check.samples import GPT2, NO_GPU, TOO_LARGE, grown, write
from command_line import xmem_fast
from estimate_samples import MIB
from training_sample import training
from xmem.estimation.estimate import Estimate


def check(*arguments: object) -> Result:
    return xmem_fast("check", *arguments)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in: a repository with a trace and an estimate in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")  # lines are not broken in narrow terminals either
    for variable in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(variable, raising=False)
    training().write(tmp_path / "run.json")
    write(tmp_path / "gpt2.json", GPT2)
    script = tmp_path / "examples" / "train_gpt2.py"
    script.parent.mkdir()
    script.write_text("import torch\n" * 200)
    return tmp_path


def test_a_growth_without_a_baseline_is_a_mistake() -> None:
    result = check("run.json", "--budget", "1GiB", "--max-growth", "5%")
    assert result.exit_code == 2
    assert "--max-growth has no baseline to compare with; pass --baseline" in result.stderr


class TestBudget:
    def test_a_trace_within_and_over(self):
        within = check("run.json", "--budget", "1GiB")
        assert (within.exit_code, within.stderr) == (0, "")
        assert within.stdout.startswith("ok    run: device peak ")
        assert "of the budget of 1.00 GiB, no GPU named: without the CUDA context\n" in within.stdout
        over = check("run.json", "--budget", "1MiB")
        assert over.exit_code == 1
        assert over.stdout.startswith("FAIL  run: ")

    def test_the_figure_is_that_of_the_estimate(self):
        estimate = xmem_fast("estimate", "run.json", "--gpu", "t4", "--json").stdout
        needed = json.loads(estimate)
        for metric, key in [("device_peak", "device_peak_bytes"), ("reserved", "peak_reserved_bytes")]:
            arguments = ("run.json", "--gpu", "t4", "--metric", metric)
            assert check(*arguments, "--budget", needed[key]).exit_code == 0
            assert check(*arguments, "--budget", needed[key] - 1).exit_code == 1

    def test_an_estimate_says_who_holds_the_bytes(self):
        result = check("gpt2.json", "--budget", "3GiB")
        assert result.exit_code == 1
        assert result.stdout.splitlines()[:4] == [
            "FAIL  gpt2 on RTX 3060 12 GB: device peak 3.43 GiB, 114% of the budget of 3.00 GiB, fits",
            "      the device peak is 3.43 GiB, 442.00 MiB over the budget of 3.00 GiB",
            "        categories at the peak",
            "            1.56 GiB  activation",
        ]
        assert "            1.95 GiB  examples/train_gpt2.py:83\n" in result.stdout

    def test_confidence_judges_the_upper_bound(self):
        assert check("gpt2.json", "--budget", "3600MiB").exit_code == 0
        assert check("gpt2.json", "--budget", "3600MiB", "--confidence", "0.9").exit_code == 1

    def test_several_inputs_and_patterns(self, folder):
        for name in ("a", "b"):
            shutil.copy(folder / "run.json", folder / f"{name}.trace.json")
        result = check("*.trace.json", "gpt2.json", "--budget", "1GiB")
        assert result.exit_code == 1
        assert [line[:9] for line in result.stdout.splitlines() if line[:2] in ("ok", "FA")] == [
            "ok    a.t", "ok    b.t", "FAIL  gpt",
        ]  # fmt: skip
        assert result.stdout.endswith("1 of 3 checks failed\n")


class TestGpus:
    def test_each_gpu_is_a_check(self):
        result = check("run.json", "--gpu", "t4", "--gpu", "rtx-3060", "--json")
        checks = json.loads(result.stdout)["checks"]
        assert [entry["gpu"] for entry in checks] == ["t4", "rtx-3060"]
        assert checks[0]["bytes"] != checks[1]["bytes"], "each GPU has a context of its own"

    def test_an_estimate_brings_its_verdict(self, folder):
        write(folder / "large.json", TOO_LARGE)
        assert check("gpt2.json").exit_code == 0
        result = check("large.json")
        assert result.exit_code == 1
        assert "does not fit in the 2.93 GiB of the RTX 3060 12 GB: needs 3.43 GiB" in result.stdout

    def test_an_estimate_for_another_gpu_is_refused(self):
        result = check("gpt2.json", "--gpu", "t4")
        assert result.exit_code == 2
        assert "an estimate for rtx-3060; pass the trace that it was made from" in result.stderr


class TestBaseline:
    def test_written_compared_and_grown(self, folder):
        first = check("run.json", "--gpu", "t4", "--baseline", "baselines/run.json", "--update-baseline")
        assert first.exit_code == 0
        kept = json.loads((folder / "baselines/run.json").read_text())
        assert kept["timings_s"] == {}
        assert Estimate.from_json(kept).target.gpu == "t4"
        again = check("run.json", "--gpu", "t4", "--baseline", "baselines/run.json")
        assert again.exit_code == 0
        assert ", 0 B against baselines/run.json" in again.stdout
        training(batch_bytes=24 * MIB).write(folder / "run.json")
        grew = check("run.json", "--gpu", "t4", "--baseline", "baselines/run.json")
        assert grew.exit_code == 1
        assert "the device peak grew by" in grew.stdout
        assert "train.py:7" in grew.stdout.partition("lines that grew")[2]
        assert (
            check("run.json", "--gpu", "t4", "--baseline", "baselines", "--max-growth", "1GiB").exit_code == 0
        )

    def test_a_baseline_written_twice_is_the_same(self, folder):
        texts = []
        for _ in range(2):
            check("run.json", "--baseline", "b.json", "--update-baseline")
            texts.append((folder / "b.json").read_text())
        assert texts[0] == texts[1]

    def test_a_folder_has_a_file_for_each_check(self, folder):
        check(
            *("run.json", "--gpu", "t4", "--gpu", "a10", "--baseline", "baselines", "--update-baseline"),
        )
        assert sorted(path.name for path in (folder / "baselines").iterdir()) == [
            "run-a10.json",
            "run-t4.json",
        ]

    def test_one_file_for_several_checks_is_refused(self):
        result = check("run.json", "gpt2.json", "--baseline", "b.json", "--update-baseline")
        assert result.exit_code == 2
        assert "name a folder, which gets one file for each check" in result.stderr

    def test_a_missing_baseline_says_how_to_write_it(self):
        result = check("run.json", "--baseline", "none.json")
        assert result.exit_code == 3
        assert "none.json: there is no baseline yet; write it with `xmem-fast check --update-baseline`" in (
            result.stderr
        )

    def test_a_budget_counts_while_a_baseline_is_written(self):
        arguments = ("run.json", "--budget", "1MiB", "--baseline", "b.json", "--update-baseline")
        assert check(*arguments).exit_code == 1


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("run.json",), "run has no limit to check against; pass --budget, --gpu or --baseline"),
            (("run.json", "--budget", "10 apples"), "'10 apples' is not a size; write it like"),
            (
                ("run.json", "--budget", "1GiB", "--max-growth", "x"),
                "'x' is not a valid growth; write it like",
            ),
            (("run.json", "--gpu", "rtx-9999"), "rtx-9999"),
            (("run.json", "--budget", "1GiB", "--confidence", "2"), "2"),
            (
                ("run.json", "--budget", "1GiB", "--confidence", "0.9", "--metric", "allocated"),
                "which have bounds",
            ),
            (("gpt2.json", "--confidence", "0.99"), "an interval of confidence 0.9"),
            (("gpt2.json", "--torch", "2.6"), "the trace that it was made from"),
            (("run.json", "--budget", "1GiB", "--update-baseline"), "--baseline with it"),
            (
                ("run.json", "--budget", "1GiB", "--json", "--format", "sarif"),
                "--json and --format sarif cannot be combined",
            ),
            (
                ("run.json", "--config", "xmem.toml"),
                "--config and --job cannot be combined with inputs; pass either inputs, or a file of jobs",
            ),
            ((), "nothing to check"),
        ],
    )
    def test_usage(self, arguments, said):
        result = check(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr

    def test_an_estimate_without_a_gpu_needs_a_limit(self, folder):
        write(folder / "plain.json", NO_GPU)
        assert check("plain.json").exit_code == 2

    def test_an_unreadable_input_does_not_keep_the_others_back(self, folder):
        (folder / "broken.json").write_text('{"traceEvents": [')
        result = check("broken.json", "gpt2.json", "missing.json", "--budget", "4GiB")
        assert result.exit_code == 3
        assert "FAIL  broken: no answer\n" in result.stdout
        assert "ok    gpt2" in result.stdout
        assert "missing.json: cannot be read: No such file or directory" in result.stdout

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ('{"schema_version": 99}', "not an estimate of schema version 1"),
            ('{"schema_version": 1}', "this estimate is damaged"),
            ('{"schema_version": 1,', "this estimate is damaged"),
            ('{"schema_version": "\xff"}', "not UTF-8"),
        ],
    )
    def test_a_damaged_estimate(self, folder, content, said):
        (folder / "damaged.json").write_bytes(content.encode("latin-1"))
        result = check("damaged.json", "--budget", "1GiB")
        assert result.exit_code == 3
        assert said in result.stdout
        assert "damaged.json" in result.stdout

    def test_an_address_is_no_pattern(self):
        result = check("nowhere://host/run.json?signature=a", "--budget", "1GiB")
        assert result.exit_code == 3
        assert "no file matches" not in result.output

    def test_a_pattern_that_matches_nothing(self):
        result = check("*.trace", "--budget", "1GiB")
        assert result.exit_code == 3
        assert "*.trace: no file matches" in result.stderr

    def test_an_output_that_cannot_be_written(self):
        result = check("gpt2.json", "--format", "sarif", "-o", "no/such/folder.sarif")
        assert result.exit_code == 2
        assert "-o no/such/folder.sarif cannot be written" in result.stderr


class TestFormats:
    def test_json_is_one_object(self):
        for arguments in (("--json",), ("--format", "json")):
            result = check("gpt2.json", "--budget", "3GiB", *arguments)
            assert (result.exit_code, result.stderr) == (1, "")
            answer = json.loads(result.stdout)
            assert (answer["schema_version"], answer["passed"]) == (1, False)
            entry = answer["checks"][0]
            assert entry["bytes"] == GPT2.device_peak_bytes
            assert entry["estimated_bytes"] == entry["bytes"]
            assert entry["budget_bytes"] == 3 << 30
            assert entry["baseline_bytes"] == entry["allowed_growth_bytes"] == -1
            assert entry["findings"][0]["rule"] == "over-budget"
            assert entry["findings"][0]["bytes_by"]["module"]["GPT.head"] == 1200 * MIB

    def test_json_names_what_it_could_not_read_on_stderr_too(self):
        result = check("missing.json", "--budget", "1GiB", "--json")
        assert json.loads(result.stdout)["checks"][0]["findings"][0]["rule"] == "no-answer"
        assert "missing.json: cannot be read" in result.stderr

    def test_github_marks_the_line_and_writes_the_summary(self, folder, monkeypatch):
        summary = folder / "summary.md"
        summary.write_text("before\n")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
        result = check("gpt2.json", "--budget", "3GiB", "--format", "github")
        assert result.exit_code == 1
        assert result.stdout.startswith("FAIL  gpt2")
        assert (
            "\n::error file=examples/train_gpt2.py,line=83,title=GPU memory of gpt2 on RTX 3060"
            in result.stdout
        )
        written = summary.read_text()
        assert written.startswith("before\n### GPU memory\n")
        assert "| gpt2 on RTX 3060 12 GB | **failed** | device peak 3.43 GiB" in written

    def test_a_file_gets_the_format_and_stdout_the_text(self, folder):
        result = check("gpt2.json", "--budget", "3GiB", "--format", "sarif", "-o", "out.sarif")
        assert result.stdout.startswith("FAIL  gpt2")
        assert "::error" not in result.stdout
        assert json.loads((folder / "out.sarif").read_text())["version"] == "2.1.0"

    def test_on_github_a_file_beside_the_marks(self, folder, monkeypatch):
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        result = check("gpt2.json", "--budget", "3GiB", "--format", "sarif", "-o", "out.sarif")
        assert "::error file=examples/train_gpt2.py,line=83" in result.stdout
        assert (folder / "out.sarif").exists()

    def test_text_in_a_file_has_no_colours(self, folder):
        check("gpt2.json", "-o", "out.txt")
        assert (
            folder / "out.txt"
        ).read_text() == "ok    gpt2 on RTX 3060 12 GB: device peak 3.43 GiB, fits\n"


class TestFileOfJobs:
    def test_jobs_of_xmem_toml(self, folder):
        (folder / "xmem.toml").write_text(
            '[check]\ngpu = "t4"\n[check.jobs.small]\ntrace = "run.json"\nbudget = "1GiB"\n'
            '[check.jobs.large]\nestimate = "gpt2.json"\ngpu = []\nbudget = "3GiB"\n'
        )
        result = check()
        assert result.exit_code == 1
        assert "ok    small on T4 16 GB" in result.stdout
        assert "FAIL  large on RTX 3060 12 GB" in result.stdout
        assert check("--job", "small").exit_code == 0
        assert check("--job", "large", "--budget", "4GiB").exit_code == 0, "the command line wins"
        unknown = check("--job", "medium")
        assert unknown.exit_code == 2
        assert "one of small, large" in unknown.stderr

    def test_jobs_of_pyproject(self, folder):
        (folder / "pyproject.toml").write_text(
            '[tool.xmem.check.jobs.small]\ntrace = "run.json"\nbudget = "1GiB"\n'
        )
        assert check().exit_code == 0
        assert check("--config", "pyproject.toml").exit_code == 0

    def test_files_lie_beside_the_file_of_jobs(self, folder):
        sub = folder / "ci"
        sub.mkdir()
        shutil.move(folder / "run.json", sub / "run.json")
        (sub / "xmem.toml").write_text('[check.jobs.small]\ntrace = "run.json"\nbaseline = "kept"\n')
        assert check("--config", "ci/xmem.toml", "--update-baseline").exit_code == 0
        assert (sub / "kept" / "small.json").exists()
        assert check("--config", "ci/xmem.toml").exit_code == 0

    def test_a_command_that_fails_is_said(self, folder):
        (folder / "xmem.toml").write_text(
            '[check]\nbudget = "1GiB"\n[check.jobs.broken]\ncommand = ["python", "no_such_script.py"]\n'
            '[check.jobs.small]\ntrace = "run.json"\n'
        )
        result = check()
        assert result.exit_code == 3
        assert "FAIL  broken: no answer" in result.stdout
        assert "ok    small" in result.stdout


def test_growth_of_a_module_is_in_the_answer(folder):
    write(folder / "before.json", GPT2)
    write(folder / "after.json", grown(GPT2, 700, module="GPT.head", line="examples/train_gpt2.py:99"))
    result = check("after.json", "--baseline", "before.json", "--format", "github")
    assert result.exit_code == 1
    assert " +700.00 MiB  GPT.head\n" in result.stdout
    assert "::error file=examples/train_gpt2.py,line=99" in result.stdout
