"""The pytest plugin, in runs of pytest inside of this one, where ``xmem.record`` is replaced."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import xmem
import xmem.pytest_plugin
import xmem.recording
from check.samples import GPT2, grown
from xmem.estimation.estimate import Estimate

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs inside of this one load only what they are told to."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Replaces ``xmem.record``: every block needs what the GPT-2 of the samples needs. The calls."""
    calls: list[dict] = []

    @contextmanager
    def record(**options):
        calls.append(options)
        recorder = SimpleNamespace(estimate=None)
        yield recorder
        recorder.estimate = GPT2

    monkeypatch.setattr(xmem, "record", record, raising=False)
    return calls


def run(pytester: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess("-p", "xmem.pytest_plugin", "--strict-markers", *arguments)


class TestMarker:
    def test_over_fails_with_the_holders_and_within_passes(self, pytester, recorded):
        result = run(
            pytester,
            """
            import pytest

            @pytest.mark.xmem_budget("3GiB", gpu="rtx-3060")
            def test_over():
                pass

            @pytest.mark.xmem_budget("4GiB", gpu="rtx-3060")
            def test_within():
                pass

            def test_unmarked():
                pass
            """,
        )
        result.assert_outcomes(passed=2, failed=1)
        result.stdout.fnmatch_lines(
            [
                "FAIL  test_over on RTX 3060 12 GB: device peak 3.43 GiB, 114% of the budget of 3.00 GiB*",
                "*the device peak is 3.43 GiB, 442.00 MiB over the budget of 3.00 GiB",
                "*1.95 GiB  examples/train_gpt2.py:83",
            ]
        )
        result.stdout.no_fnmatch_line("*Traceback*")
        assert recorded == [{"gpu": "rtx-3060"}] * 2

    def test_a_metric(self, pytester, recorded):
        result = run(
            pytester,
            """
            import pytest

            @pytest.mark.xmem_budget("3200MiB", metric="allocated")
            def test_allocated():
                pass

            @pytest.mark.xmem_budget(3200 * 2**20, metric="reserved")
            def test_reserved():
                pass
            """,
        )
        result.assert_outcomes(passed=1, failed=1)
        assert recorded == [{"gpu": None}] * 2

    def test_the_nearest_marker_counts(self, pytester, recorded):
        result = run(
            pytester,
            """
            import pytest

            pytestmark = pytest.mark.xmem_budget("1GiB")

            class TestAll:
                @pytest.mark.xmem_budget("4GiB")
                def test_of_its_own(self):
                    pass

                def test_inherited(self):
                    pass
            """,
        )
        result.assert_outcomes(passed=1, failed=1)
        assert len(recorded) == 2

    @pytest.mark.usefixtures("recorded")
    def test_only_the_body_is_recorded(self, pytester):
        result = run(
            pytester,
            """
            import pytest, xmem

            @pytest.fixture
            def model(monkeypatch):
                real = xmem.record
                monkeypatch.setattr(xmem, "record", lambda **options: print("begins") or real(**options))
                print("fixture made")

            @pytest.mark.xmem_budget("4GiB")
            def test_it(model):
                print("body")
            """,
            "-s",
        )
        result.stdout.fnmatch_lines(["*fixture made", "begins", "body"])
        result.assert_outcomes(passed=1)

    @pytest.mark.usefixtures("recorded")
    def test_a_failure_of_the_test_is_its_own(self, pytester):
        result = run(
            pytester,
            """
            import pytest

            @pytest.mark.xmem_budget("1GiB")
            def test_it():
                assert 1 == 2
            """,
        )
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*assert 1 == 2"])
        result.stdout.no_fnmatch_line("*over the budget*")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ('"10 apples"', "'10 apples' is not a size; write it like"),
            ("", "no limit was given; pass a budget, a gpu or a baseline"),
            ('gpu="rtx-9999"', "rtx-9999"),
            ('"1GiB", "2GiB"', "arguments '1GiB', '2GiB' are invalid; use xmem_budget(budget=None"),
            ('"1GiB", gpus=2', "gpus are invalid; use xmem_budget(budget=None"),
            ('"1GiB", metric="peak"', "one of device_peak, reserved, allocated"),
            ('"1GiB", max_growth="x"', "'x' is not a valid growth; write it like"),
            ("True", "budget=True"),
            ('"1GiB", gpu=["t4"]', "gpu=['t4']"),
        ],
    )
    def test_invalid_arguments_are_a_usage_error(self, pytester, recorded, arguments, said):
        result = run(
            pytester,
            f"""
            import pytest

            def test_first():
                pass

            @pytest.mark.xmem_budget({arguments})
            def test_it():
                pass
            """,
        )
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        error = next(line for line in result.errlines if line.startswith("ERROR: "))
        assert "::test_it: @pytest.mark.xmem_budget: " in error
        assert said in error
        assert recorded == []

    @pytest.mark.usefixtures("recorded")
    def test_a_test_that_cannot_be_recorded_does_not_pass_silently(self, pytester):
        result = run(
            pytester,
            """
            import unittest
            import pytest

            class TestOld(unittest.TestCase):
                @pytest.mark.xmem_budget("1GiB")
                def test_it(self):
                    pass
            """,
        )
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert any("methods of unittest.TestCase" in line for line in result.errlines)


class TestBaseline:
    SOURCE = """
        import pytest

        @pytest.mark.xmem_budget(baseline="baselines/test.json", max_growth="1%")
        def test_it():
            pass
        """

    @pytest.mark.usefixtures("recorded")
    def test_written_then_compared(self, pytester, monkeypatch):
        run(pytester, self.SOURCE).assert_outcomes(failed=1)
        run(pytester, self.SOURCE, "--xmem-update-baselines").assert_outcomes(passed=1)
        path = pytester.path / "baselines" / "test.json"
        assert Estimate.from_json(json.loads(path.read_text())).device_peak_bytes == GPT2.device_peak_bytes
        run(pytester, self.SOURCE).assert_outcomes(passed=1)

        @contextmanager
        def record(**_options):
            yield SimpleNamespace(estimate=grown(GPT2, 100, module="GPT.head", line="train.py:9"))

        monkeypatch.setattr(xmem, "record", record)
        result = run(pytester, self.SOURCE)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            ["*the device peak grew by 100.00 MiB (+2.8%)*", "*+100.00 MiB  GPT.head"]
        )

    @pytest.mark.usefixtures("recorded")
    def test_a_missing_one_says_how_to_write_it(self, pytester):
        result = run(pytester, self.SOURCE)
        result.stdout.fnmatch_lines(
            ["*there is no baseline yet; write it with `pytest --xmem-update-baselines`"]
        )

    @pytest.mark.usefixtures("recorded")
    def test_a_damaged_one_fails_the_test(self, pytester):
        (pytester.path / "baselines").mkdir()
        (pytester.path / "baselines" / "test.json").write_text("{")
        result = run(pytester, self.SOURCE)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*baselines/test.json*not an estimate*"])


class TestFixtures:
    def test_a_part_of_a_test_has_a_budget(self, pytester, recorded):
        result = run(
            pytester,
            """
            def test_it(xmem_budget):
                with xmem_budget("4GiB", gpu="t4") as recorder:
                    pass
                assert recorder.estimate.peak_allocated_bytes == 3200 * 2**20
                with xmem_budget("1GiB"):
                    print("second")
                print("not reached")
            """,
        )
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["second"])
        result.stdout.no_fnmatch_line("not reached")
        assert recorded == [{"gpu": "t4"}, {"gpu": None}]

    def test_a_recorder_holds_to_nothing(self, pytester, recorded):
        result = run(
            pytester,
            """
            def test_it(xmem_recorder):
                with xmem_recorder(gpu="t4", capacity="8GiB") as recorder:
                    pass
                assert recorder.estimate.fits
            """,
        )
        result.assert_outcomes(passed=1)
        assert recorded == [{"gpu": "t4", "capacity": "8GiB"}]


class TestRealRecordings:
    """Torch on the CPU: 1,000 x 1,000 floats are 4,000,000 bytes, 4,000,256 in blocks of 512."""

    @pytest.fixture(autouse=True)
    def all_is_imported(self) -> None:
        """Runs inside of this one forget what they import, and NumPy is not to be imported twice."""
        torch = pytest.importorskip("torch")
        with xmem.record() as recorder:
            torch.ones(1000)
        assert recorder.estimate.peak_allocated_bytes == 4096

    def test_the_body_is_measured_and_what_came_before_it_is_not(self, pytester):
        result = run(
            pytester,
            """
            import pytest, torch

            @pytest.fixture
            def garbage():
                for _ in range(8):
                    torch.ones(1000, 1000).sum()

            @pytest.mark.xmem_budget("4MB", metric="allocated")
            def test_one_too_many(garbage):
                first = torch.ones(1000, 1000)

            @pytest.mark.xmem_budget("5MB", metric="allocated")
            def test_one(garbage):
                first = torch.ones(1000, 1000)

            @pytest.mark.xmem_budget("5MB", metric="allocated")
            def test_two(garbage):
                first = torch.ones(1000, 1000)
                second = torch.ones(1000, 1000)
            """,
        )
        result.assert_outcomes(passed=1, failed=2)
        result.stdout.fnmatch_lines(
            ["FAIL  test_one_too_many: *", "FAIL  test_two: *", "*lines at the peak", "*test_the_body*.py:*"]
        )

    def test_a_body_without_memory_says_so(self, pytester):
        result = run(
            pytester,
            """
            import pytest

            @pytest.mark.xmem_budget("1GiB")
            def test_it():
                pass
            """,
        )
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*the block made no tensor and used none*"])
        result.stdout.no_fnmatch_line("*another exception*")

    def test_a_block_inside_of_a_recorded_body_is_refused(self, pytester):
        result = run(
            pytester,
            """
            import pytest, torch

            @pytest.mark.xmem_budget("1GiB")
            def test_it(xmem_budget):
                with xmem_budget("1MiB"):
                    torch.ones(1000, 1000)
            """,
        )
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            ["*another recording was running already; only the outermost one records"]
        )


@pytest.mark.usefixtures("recorded")
def test_the_report_folder_has_a_file_a_recording(pytester):
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.xmem_budget("1GiB")
        @pytest.mark.parametrize("name", ["a/b", "a:b"])
        def test_marked(name):
            pass

        def test_twice(xmem_recorder):
            for _ in range(2):
                with xmem_recorder():
                    pass
        """,
        "--xmem-report=reports/memory",
    )
    result.assert_outcomes(passed=1, failed=2)
    files = sorted((pytester.path / "reports" / "memory").iterdir())
    assert len(files) == 4
    assert all("test_the_report_folder" in file.name and file.suffix == ".json" for file in files)
    assert Estimate.from_json(json.loads(files[0].read_text())) == GPT2


@pytest.mark.usefixtures("recorded")
def test_junit_xml_has_the_figure(pytester):
    source = "import pytest\n@pytest.mark.xmem_budget('4GiB')\ndef test_it(): pass\n"
    run(pytester, source, "--junit-xml=junit.xml").assert_outcomes(passed=1)
    written = (pytester.path / "junit.xml").read_text()
    assert f'<property name="xmem_device_peak_bytes" value="{GPT2.device_peak_bytes}"' in written


def test_the_marker_and_the_options_explain_themselves(pytester):
    help_text = run(pytester, "", "--help").stdout.str()
    assert "--xmem-report=FOLDER" in help_text
    assert "--xmem-update-baselines" in help_text
    assert "@pytest.mark.xmem_budget(budget=None, *, gpu=None" in run(pytester, "", "--markers").stdout.str()


def test_pytest_finds_it_in_the_installed_package():
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert pyproject["project"]["entry-points"]["pytest11"] == {"xmem": xmem.pytest_plugin.__name__}


def test_unused_it_imports_nothing():
    """Loaded by its path, so that importing the package itself does not count."""
    path = Path(xmem.pytest_plugin.__file__)
    program = f"""
import importlib.util, sys
import pytest
before = set(sys.modules)
spec = importlib.util.spec_from_file_location("plugin", {str(path)!r})
module = importlib.util.module_from_spec(spec)
sys.modules["plugin"] = module
spec.loader.exec_module(module)
print(sorted(name.partition(".")[0] for name in set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"xmem", "numpy", "torch", "rich"} & set(json.loads(done.stdout.replace("'", '"')))
