"""Files of jobs: what is read from them, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmem.errors import ConfigError
from xmem.gate.limits import AllowedGrowth, Limits, Metric
from xmem.gate.spec import CommandToCapture, find_spec, read_jobs


def write(folder: Path, text: str, name: str = "xmem.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_jobs_inherit_and_override(tmp_path):
    jobs = read_jobs(
        write(
            tmp_path,
            """
            [check]
            gpu = ["rtx-3060", "t4"]
            budget = "10GiB"
            max_growth = "5%"
            iterations = 2
            baseline = "baselines"

            [check.jobs.gpt2]
            command = ["python", "train.py"]
            timeout_s = 60

            [check.jobs.resnet]
            trace = "resnet.json.gz"
            gpu = "a10"
            budget = 1000000
            metric = "reserved"
            confidence = 0.95
            torch = "2.6"

            [check.jobs.fitted]
            model = "gpt2.xmem"
            at = "batch=16"
            """,
        )
    )
    gpt2, resnet, fitted = jobs
    assert gpt2.source == CommandToCapture(("python", "train.py"), iterations=2, timeout_s=60)
    assert gpt2.asked.gpus == ("rtx-3060", "t4")
    assert gpt2.asked.limits == Limits(10 << 30, max_growth=AllowedGrowth(share=0.05))
    assert gpt2.asked.baseline == tmp_path / "baselines"
    assert resnet.source == str(tmp_path / "resnet.json.gz")
    assert resnet.asked.gpus == ("a10",)
    assert resnet.asked.limits == Limits(
        1_000_000, Metric.RESERVED, upper=True, max_growth=AllowedGrowth(share=0.05)
    )
    assert (resnet.asked.confidence, resnet.asked.torch_version) == (0.95, "2.6")
    assert fitted.at == "batch=16"


def test_the_first_file_with_a_table_is_found(tmp_path):
    assert find_spec(tmp_path) is None
    write(tmp_path, "[project]\nname = 'x'\n", "pyproject.toml")
    assert find_spec(tmp_path) is None
    write(tmp_path, "[tool.xmem.check.jobs.a]\ntrace = 'a.json'\n", "pyproject.toml")
    assert find_spec(tmp_path) == tmp_path / "pyproject.toml"
    write(tmp_path, "[check.jobs.a]\ntrace = 'a.json'\n")
    assert find_spec(tmp_path) == tmp_path / "xmem.toml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no table [check]"),
        ("[check]\n", "a table for each job"),
        ("check = 3\n", "check is not a table"),
        (
            "[check]\nbuget = '1GiB'\n[check.jobs.a]\ntrace = 'a'\n",
            "unknown key buget; use one of alloc_conf, baseline",
        ),
        ("[check.jobs.a]\n", "jobs.a needs exactly one source; set one of command"),
        (
            "[check.jobs.a]\ntrace = 'a'\ncommand = ['b']\n",
            "jobs.a needs exactly one source; set one of command",
        ),
        ("[check.jobs.a]\ntrace = 'a'\nat = 'batch=2'\n", "unknown key jobs.a.at; use one of"),
        ("[check.jobs.a]\ntrace = 'a'\niterations = 2\n", "unknown key jobs.a.iterations; use one of"),
        ("[check.jobs.a]\ntrace = ''\n", "the name of a file"),
        ("[check.jobs.a]\ncommand = 'python train.py'\n", "is not a list of arguments; write it like"),
        (
            "[check.jobs.a]\ncommand = ['a']\niterations = 0\n",
            "iterations = 0 is invalid; use a whole number above 0",
        ),
        (
            "[check.jobs.a]\ncommand = ['a']\nmode = 'fast'\n",
            "mode = 'fast' is invalid; use one of auto, phantom, fake, real",
        ),
        ("[check.jobs.a]\ncommand = ['a']\ntimeout_s = -1\n", "seconds above 0"),
        ("[check.jobs.a]\ntrace = 'a'\nbudget = 'much'\n", "jobs.a: 'much' is not a size; write it like"),
        ("[check.jobs.a]\ntrace = 'a'\nbudget = 1.5\n", "budget = 1.5 is invalid; use a size such as"),
        ("[check.jobs.a]\ntrace = 'a'\nmetric = 'peak'\n", "one of device_peak, reserved, allocated"),
        ("[check.jobs.a]\ntrace = 'a'\nmetric = 3\n", "one of device_peak, reserved, allocated"),
        ("[check.jobs.a]\ntrace = 'a'\nmax_growth = 'x'\n", "'x' is not a valid growth; write it like"),
        ("[check.jobs.a]\ntrace = 'a'\nconfidence = '0.9'\n", "a fraction such as 0.9"),
        ("[check.jobs.a]\ntrace = 'a'\ngpu = 3\n", "the name of a GPU, or a list of names"),
        ("[check.jobs.a]\ntrace = 'a'\nbaseline = 3\n", "baseline = 3 is not a string"),
        ("[check", "is not valid TOML ("),
        ("\ud800", "is not valid TOML ("),
    ],
)
def test_what_is_invalid_is_refused_with_file_and_key(tmp_path, text, said):
    path = tmp_path / "xmem.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError) as caught:
        read_jobs(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read \(No such file"):
        read_jobs(tmp_path / "none.toml")
