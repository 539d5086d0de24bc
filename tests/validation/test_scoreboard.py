"""Published figures are read, run in turns, kept, and scored."""

import csv
import json
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from scoreboard import extensions, rivals
from scoreboard.__main__ import claimed, in_turns, is_open
from scoreboard.answers import Answers, AnswerTables
from scoreboard.calibration import as_text, holds, residuals
from scoreboard.laboratory import HERE, Laboratory, Ran
from scoreboard.page import reachable_by_one_figure, write_page
from scoreboard.projects import liger, megatron, modded_nanogpt, peft, timm, torchtitan
from scoreboard.rows import MIB, Row
from scoreboard.score import Scored, score
from xmem.errors import ConfigError, TraceError
from xmem.estimation.calibration import ProjectResiduals, parse

COLUMNS = (
    *("source", "repo_path", "model", "config", "gpu"),
    *("torch_version", "metric", "value_bytes_or_gib", "notes"),
)
BYTES = Row("liger", "rope/h100/2025-01-01/table", "a", "operators", "h100", "", "allocated", 1e9, 1024, True)
BATCH = Row("timm", "infer/net/224", "batch", "inference", "rtx-4090", "2.9.1", "batch", 256.0, 0.0, True)


def figures(folder: Path, name: str, *lines: tuple[str, ...]) -> Path:
    with (folder / name).open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *lines])
    return folder


def test_rows_of_timm(tmp_path):
    data = figures(
        tmp_path,
        timm.FILE,
        ("huggingface/pytorch-image-models", "results/benchmark-infer-amp-nchw-pt291-cu128-4090.csv", "vit",
         "timm benchmark.py; img 224; more", "RTX 4090", "2.9.1 cu128", "batch", "768", "fits at 768"),
        ("huggingface/pytorch-image-models@aa", "results/benchmark-of-something-else.csv", "vit",
         "img 224", "RTX 4090", "2.9.1 cu128", "batch", "768", ""),
    )  # fmt: skip
    (row,) = timm.rows(data)
    assert row.job == "infer-amp-nchw-pt291-cu128-4090/vit/224"
    assert (row.truth, row.gpu, row.torch, row.is_rebuilt) == (768.0, "rtx-4090", "2.9.1", True)


def test_the_name_of_a_table_of_timm_says_how_its_benchmark_ran(tmp_path, monkeypatch):
    table = "infer-amp_bf16-nhwc-pt240-cu124-rtx4090-dynamo"
    path = f"results/benchmark-{table}.csv"
    line = (timm._REPOSITORY, path, "vit", "img 224", "RTX 4090", "2.4.0 cu124", "batch", "192", "")
    (row,) = timm.rows(figures(tmp_path, timm.FILE, line))
    assert not row.is_rebuilt
    commands = []
    published = "model,infer_batch_size\nvit,192\nresnet,1024\n"
    instead = {
        "git": lambda *words: published if "show" in words else "abc1234\n",
        "code": lambda *words: Path(words[-1]),
        "python": lambda *words: words[-1],
        "torch": lambda *words: words[-1],
        "on_phantom": lambda _, command, *__, **___: (
            commands.append(command) or Ran('--result {"infer_batch_size": 192}', "")
        ),
    }
    for name, function in instead.items():
        monkeypatch.setattr(Laboratory, name, function)
    assert timm.run(row, Laboratory(tmp_path, tmp_path, tmp_path)).figures == {"batch": 192.0}
    (command,) = commands
    assert command[:2] == ["torch-2.6.0", "abc1234/benchmark.py"]
    assert "--precision amp_bfloat16 --fast-norm --channels-last --torchcompile -b 1024" in " ".join(command)


def test_a_card_that_no_adapter_knows_is_named(tmp_path):
    table = "results/benchmark-infer-amp-nchw-pt291-cu128-4090.csv"
    line = (timm._REPOSITORY, table, "vit", "img 224", "RTX A1", "2.9.1 cu128", "batch", "768", "")
    with pytest.raises(ConfigError, match="the card 'RTX A1', which timm does not know"):
        list(timm.rows(figures(tmp_path, timm.FILE, line)))


def test_rows_of_torchtitan_are_those_whose_job_is_known(tmp_path):
    def line(path: str, value: str) -> tuple[str, ...]:
        return (
            "pytorch/torchtitan@aa",
            path,
            "Llama 3.1 8B",
            "FSDP; 128 GPUs",
            "H100",
            "",
            "reserved",
            value,
            "",
        )

    table, message = "benchmarks/llama3_h100_202412_torchtitan.md", "commit 5940ddeb53 (message)"
    data = figures(
        tmp_path,
        torchtitan.FILE,
        line(table, "67.0 GiB"),
        line(message, "62.18 GiB"),
        line(message, "67.0 GiB"),
    )
    first, second = torchtitan.rows(data)
    assert (first.job, first.truth, first.rounding) == (
        "llama3-8b/fsdp/128",
        67.0 * (1 << 30),
        0.05 * (1 << 30),
    )
    assert (second.job, second.truth) == ("llama3-8b/reshard-never/2025-02-06", 62.18 * (1 << 30))


def test_jobs_of_torchtitan_have_an_environment():
    names = {job.environment for job in torchtitan._jobs().values()}
    assert {name for name in names if (HERE / "environments" / f"{name}.txt").exists()} == names


def test_tokenizers_of_torchtitan_have_the_size_of_the_job(tmp_path):
    job = torchtitan.Job("", "", "", "", "", config="train_configs/llama3_8b.toml", words=6)
    options = torchtitan._tokenizer(tmp_path, job, tmp_path)
    tokens = Path(options[1]).read_text().splitlines()
    assert len({token.split()[0] for token in tokens}) == 128_000
    tests = tmp_path / "tests" / "assets" / "tokenizer"
    tests.mkdir(parents=True)
    (tests / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 3}}}')
    (tmp_path / "train_configs").mkdir()
    (tmp_path / job.config).write_text('[model]\ntokenizer_path = "./assets/tokenizer"\n')
    option, folder = torchtitan._tokenizer(tmp_path, job, tmp_path)
    assert option == "--model.tokenizer_path"
    words = json.loads((Path(folder) / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(words.values()) == [0, 1, 2, 3, 4, 5]
    assert (words["a"], words["b"]) == (0, 3)


def test_code_of_torchtitan_is_that_of_the_log(tmp_path):
    code = tmp_path / "checkout"
    (code / "models").mkdir(parents=True)
    (code / "models" / "args.py").write_text("words = 102400\n")
    edited = torchtitan._edited(code, torchtitan.Edit("models/args.py", "102400", "129280"), tmp_path)
    assert (edited / "models" / "args.py").read_text() == "words = 129280\n"
    assert (code / "models" / "args.py").read_text() == "words = 102400\n"


def test_equal_figures_of_torchtitan_are_told_apart_by_their_notes(tmp_path):
    one, other = (
        ("pytorch/torchtitan@b5", "commit f738a03bf4 (message)", "", "", "", "", "peak", "78.14 GiB", notes)
        for notes in ("steps 1..100 (12 lines), largest of them", "steps 1..100 (11 lines), largest of them")
    )
    found = torchtitan.rows(figures(tmp_path, torchtitan.FILE, one, other))
    assert [row.job for row in found] == [
        "deepseek-v3-16b/ep8/2025-08-20",
        "deepseek-v3-16b/ep8-flex/2025-08-22",
    ]


def test_rows_of_liger_name_a_point_however_it_is_written(tmp_path):
    data = figures(
        tmp_path,
        liger.FILE,
        ("linkedin/Liger-Kernel@ea", "benchmark/data/all_benchmark_data.csv", "jsd (torch)",
         'mode=full V=4096 {"T": 1, "B": 4}', "NVIDIA B200", "", "peak", "2.5 MiB",
         "measured 2024-09-03 15:31:42; 20/80%"),
    )  # fmt: skip
    (row,) = liger.rows(data)
    assert row.job == "jsd/b200/2024-09-03/all_benchmark_data"
    assert row.truth == 2.5 * (1 << 20)
    assert row.item == liger._item("torch", "full", "V", "4096.0", '{"B": 4, "T": 1}')


def test_settings_of_liger_are_for_a_kernel_a_commit_and_a_day():
    early, late = (liger._setting("sparsemax", "e71b1e43", day) for day in ("2025-04-28", "2025-05-15"))
    assert (early["code"], early["modes"]) == ("c9716e3a", "script")
    assert ("code" in late, late["modes"]) == (False, "forward,backward")
    assert liger._setting("rope", "b5672a15", "2024-09-03")["environment"].endswith("4.44")
    assert liger._setting("rope", "ffffffff", "2024-09-03")["environment"] == "torch-2.6.0"


def test_comparisons_of_liger_run_once_for_each_implementation(tmp_path, monkeypatch):
    """As the project's driver does: the library's own kernels, then the others, under other names."""
    monkeypatch.setattr(liger, "_added", lambda *_: {("softmax", "b200", "2026-07-24"): "7a12e092"})
    monkeypatch.setattr(liger, "_published_times", lambda *_: {})
    monkeypatch.setattr(liger, "_script", lambda *_: Path("benchmark_softmax.py"))
    monkeypatch.setattr(Laboratory, "code", lambda *_: tmp_path)
    monkeypatch.setattr(Laboratory, "python", lambda *_: "python")
    monkeypatch.setattr(Laboratory, "torch", lambda *_: "2.12.0")
    ran = []

    def on_phantom(_: Laboratory, command: list[str], gpu: str, *, variables: dict[str, str]) -> Ran:
        ran.append((gpu, variables["LIGER_KERNEL_IMPL"]))
        own = 1.0 if variables["LIGER_KERNEL_IMPL"] else 2.0
        points = [
            {"kernel": kernel, "provider": provider, "mode": "full", "x_name": "BT", "x": 1024,
             "config": "{}", "mib": mib}
            for kernel, provider, mib in (
                ("softmax", "liger", own), ("softmax", "liger_fp32", own), ("softmax", "torch", own + 2.0),
                ("of_the_same_script", "torch", 4.0),
            )
        ]  # fmt: skip
        Path(command[2]).write_text(json.dumps(points))
        return Ran("", "")

    monkeypatch.setattr(Laboratory, "on_phantom", on_phantom)
    row = replace(BYTES, job="softmax/b200/2026-07-24/all_benchmark_data_cutile", gpu="b200")
    answers = liger.run(row, Laboratory(tmp_path, tmp_path, tmp_path))
    assert ran == [("b200", ""), ("b200", "cutile")]
    assert {item.split()[0]: figure / MIB for item, figure in answers.figures.items()} == {
        "liger_triton": 2.0,
        "liger_triton_fp32": 2.0,
        "liger_cutile": 1.0,
        "liger_cutile_fp32": 1.0,
        "torch": 4.0,  # of the first run, as in the table
    }
    assert liger._renamed("liger_tiled", "whole", "liger_triton") == "liger_tiled"
    assert liger._renamed("liger", "whole", "liger_triton") == "liger_triton"


def test_rows_of_megatron_are_first_runs(tmp_path):
    def line(
        test: str, file: str, gpu: str = "A100 (dgx_a100)", config: str = "", notes: str = ""
    ) -> tuple[str, ...]:
        path = f"{test}/golden_values_{file}.json"
        return ("NVIDIA/Megatron-LM@d9", path, test, config, gpu, "", "peak", "3632653312", notes)

    data = figures(
        tmp_path,
        megatron.FILE,
        line("gpt/gpt3_tp1", "dev"),
        line("gpt/gpt3_tp1", "dev_2nd"),
        line("gpt/gpt3_tp1", "lts_dgxa100_dracooci-ord"),
        line("gpt/gpt3_tp1", "lts_dgx_a100", notes="env=lts; value = max over 21 logged steps (1..100)"),
        line("gpt/gpt3_tp1_resume_torch_dist_reshard_8x1xNone", "lts_dgxa100_dracooci"),
        line("gpt/gpt3_tp2", "lts_dgxa100_dracooci", config="num-layers=12 attention-backend=flash"),
        line("moe/gpt3_tp1", "lts", "H100 (dgx_h100)"),
        line("t5/t5_tp1", "lts"),
        line("gpt/gpt3_7b_tp4_pp1_memory_speed", "lts"),
    )
    dense, older, logged_less, not_deterministic, asked_for, experts = megatron.rows(data)
    assert (dense.job, dense.gpu, dense.truth) == ("gpt/gpt3_tp1/a100-80gb", "a100-80gb", 3632653312.0)
    assert older.job == logged_less.job == "gpt/gpt3_tp1/a100-80gb/unfused"
    assert not_deterministic.job == "gpt/gpt3_tp1_resume_torch_dist_reshard_8x1xNone/a100-80gb"
    assert asked_for.job == "gpt/gpt3_tp2/a100-80gb"
    assert experts.job == "moe/gpt3_tp1/h100"


def test_kernels_of_flash_attention_that_are_left_out_raise_an_error(tmp_path):
    def file(size: int, dtype: str) -> Path:
        written = tmp_path / f"flash_fwd_hdim{size}_{dtype}_sm80.cu"
        entry = f"void run_mha_fwd_<cutlass::{dtype}, {size}, false>(Flash_fwd_params &params)"
        split = (
            f"template void run_mha_fwd_splitkv_dispatch<cutlass::{dtype}, {size}, false>(Params &params);"
        )
        written.write_text(f"template<>\n{entry} {{\n  run_mha_fwd_hdim{size}(params);\n}}\n{split}\n")
        return written

    kept, other_size, other_type = file(64, "bf16"), file(128, "bf16"), file(64, "fp16")
    whole = kept.read_text()
    extensions._leave_out(tmp_path)
    assert kept.read_text() == whole
    left_out = [written.read_text() for written in (other_size, other_type)]
    # One file has them all, because each file of CUDA code takes long to read PyTorch's headers.
    assert sorted(map(bool, left_out)) == [False, True]
    for size, dtype in ((128, "bf16"), (64, "fp16")):
        entry = f"void run_mha_fwd_<cutlass::{dtype}, {size}, false>(Flash_fwd_params &params)"
        assert f"template<> {entry} {{ throw" in max(left_out)
        split = f"void run_mha_fwd_splitkv_dispatch<cutlass::{dtype}, {size}, false>(Params &params)"
        assert f"template<> {split} {{ throw" in max(left_out)


def test_a_recipe_of_megatron_keeps_everything_but_its_files():
    recipe = {
        "MODEL_ARGS": {
            "--data-path": "${DATA_PATH}/text", "--save": "there", "--save-interval": 10000,
            "--bf16": True, "--async-save": False, "--lr": 1.5e-4, "--sizes": "[2 2]",
        }
    }  # fmt: skip
    words = ["--save-interval", "10000", "--bf16", "--lr", "0.00015", "--sizes", "2", "2"]
    assert megatron.arguments(recipe) == words


def test_rows_of_modded_nanogpt_share_a_job_where_they_share_a_script(tmp_path):
    def line(log: str, release: str, metric: str, value: str) -> tuple[str, ...]:
        path = f"records/{log}.txt"
        config = "the whole script is at the head of the log file"
        return (
            "KellerJordan/modded-nanogpt@f4",
            path,
            "GPT-2",
            config,
            "8x H100",
            release,
            metric,
            value,
            "",
        )

    aligned = "track_1_short/2025-07-12_BosAlign"
    early, late = (f"2.{minor}.0.dev2025{day}+cu126" for minor, day in ((8, "0524"), (9, "0713")))
    data = figures(
        tmp_path,
        modded_nanogpt.FILE,
        line(f"{aligned}/a", early, "max_memory_allocated (MiB, rank 0)", "300 MiB"),
        line(f"{aligned}/b", early, "max_memory_reserved (MiB, rank 0)", "400 MiB"),
        line(f"{aligned}/c", late, "max_memory_reserved (MiB, rank 0)", "500 MiB"),
        line("track_1_short/2025-07-13_OfAnotherDay/d", late, "max_memory_reserved (MiB, rank 0)", "600 MiB"),
        line("track_2_medium/2025-09-17_UpdateSmoothing/e", "2.8.0+cu128", "max_memory_reserved", "700 MiB"),
    )
    first, second, third, last = modded_nanogpt.rows(data)
    assert first.job == second.job != third.job
    assert [row.item for row in (first, second, third, last)] == ["allocated", *["reserved"] * 3]
    assert (second.truth, second.quantity, second.gpu) == (400.0 * MIB, "reserved", "h100")
    assert [row.is_rebuilt for row in (first, third, last)] == [False, False, True]


def test_jobs_of_modded_nanogpt_have_an_environment_and_a_name_of_their_own():
    jobs = modded_nanogpt._jobs().values()
    assert all((HERE / "environments" / f"{job.environment}.txt").exists() for job in jobs)
    assert len({job.name for job in jobs}) == len(jobs)


def test_scripts_of_modded_nanogpt_repeat_less_often():
    early = "    num_iterations : int = 1480 # number\n    val_loss_every : int = 125 # steps\n"
    late = "    num_iterations = 5590  # number\n    val_loss_every = (\n        125  # steps\n    )\n"
    used = "x = step / args.num_iterations\n"
    assert modded_nanogpt.shortened(early + used) == early.replace("1480", "20").replace("125", "10") + used
    assert modded_nanogpt.shortened(late + used) == late.replace("5590", "20").replace("125", "10") + used
    stages = (
        "    num_scheduled_iterations: int = 1450\n    num_extension_iterations: int = 40\n"
        "    val_loss_every: int = 250\n"
    )
    shorter = stages.replace("1450", "20").replace("40", "4").replace("250", "10")
    assert modded_nanogpt.shortened(stages) == shorter
    with pytest.raises(AssertionError, match="number of steps"):
        modded_nanogpt.shortened("    val_loss_every = 125\n")


def test_modules_of_modded_nanogpt_follow_the_script_in_its_log():
    line = "-" * 40
    log = f"import triton_kernels\n\n\n{line}\n# triton_kernels.py\n{line}\n\nimport triton\n"
    assert modded_nanogpt._MODULE.split(log) == [
        "import triton_kernels",
        "triton_kernels.py",
        "import triton\n",
    ]


def test_figures_of_modded_nanogpt_are_the_last_line_of_its_script():
    assert modded_nanogpt.peaks("step:1\npeak memory consumption: 3 MiB\n") == {"allocated": 3.0 * MIB}
    both = modded_nanogpt.peaks("peak memory allocated: 3 MiB reserved: 4 MiB\n")
    assert both == {"allocated": 3.0 * MIB, "reserved": 4.0 * MIB}
    assert modded_nanogpt.peaks("Traceback") == {}


def test_tokens_of_modded_nanogpt_are_as_its_scripts_read_them(tmp_path, monkeypatch):
    monkeypatch.setattr(modded_nanogpt, "_TOKENS", 3000)
    modded_nanogpt.write_tokens(tmp_path / "data")
    files = sorted((tmp_path / "data").glob("fineweb_*_*.bin"))
    assert [file.name.split("_")[1] for file in files] == ["train", "train", "val"]
    raw = files[0].read_bytes()
    assert struct.unpack("<4i", raw[:16]) == (20240520, 1, 3000, 0)
    tokens = struct.unpack("<3000H", raw[1024:])
    assert [place for place, token in enumerate(tokens) if token == 50256] == [0, 1000, 2000]


def test_rows_of_peft_and_which_of_them_are_run(tmp_path):
    def line(task: str, release: str, metric: str) -> tuple[str, ...]:
        path = f"method_comparison/{task}/results/lora--default-r32--b.json"
        return ("huggingface/peft@5d", path, "lora", "{}", "NVIDIA L40S",
                f"torch {release}+cu130 transformers 5.10.2", metric, "10708058112", "success")  # fmt: skip

    data = figures(
        tmp_path,
        peft.FILE,
        line("image-gen", "2.12.0", "max_memory_reserved minus start, over the whole run"),
        line("image-gen", "2.13.0", "mean of memory_reserved at step ends"),
        line("image-gen", "2.13.0", "size of the checkpoint"),
        line("MetaMathQA", "2.12.0", "99th percentile of memory_reserved at step ends"),
    )
    same, other, text = peft.rows(data)
    assert same.job == other.job == "image-gen/lora/default-r32--b"
    assert [row.item for row in (same, other, text)] == ["max", "mean", "99th"]
    assert (same.truth, same.gpu, same.quantity) == (10708058112.0, "l40s", "reserved")
    assert (same.is_rebuilt, other.is_rebuilt) == (True, False)
    assert is_open(same, None, "1", retry=False)
    assert not is_open(text, None, "1", retry=True)  # its data are not to be had


def test_the_mean_of_a_short_run_of_peft_is_weighted_as_in_the_whole_run():
    said = {
        "accelerator_memory_max": 500,
        "accelerator_memory_reserved_99th": 490,
        "accelerator_memory_reserved_avg": 400 - 110 / 110,  # 100 steps of 390, 10 of 489
        "metrics": [{"step": 100, "mem reserved avg": 390.0}, {"step": 110}],
    }
    assert peft.figures(said, evaluation=100, steps=750) == pytest.approx(
        {"max": 500, "99th": 490, "mean": (100 * 390 + 650 * 489) / 750}
    )


def test_the_parts_of_a_model_get_weights_where_their_libraries_look(tmp_path, monkeypatch):
    made = []

    def make_weights(_: Path, file: Path, *rest: str) -> None:
        made.append((file.relative_to(tmp_path / "code" / "models").as_posix(), rest[-1]))
        file.touch()

    monkeypatch.setattr("scoreboard.laboratory.make_weights", make_weights)
    monkeypatch.setattr(Laboratory, "python", lambda _, environment: environment)
    laboratory = Laboratory(tmp_path / "histories", tmp_path / "code", tmp_path / "environments")
    for _ in range(2):  # what was made stays
        folder = laboratory.model("flux2-klein-base-4b", "an environment", "bfloat16")
    assert sorted(made) == [
        ("flux2-klein-base-4b/text_encoder/model.safetensors", "bfloat16"),
        ("flux2-klein-base-4b/transformer/diffusion_pytorch_model.safetensors", "bfloat16"),
        ("flux2-klein-base-4b/vae/diffusion_pytorch_model.safetensors", "bfloat16"),
    ]
    assert (folder / "model_index.json").exists()
    assert (folder / "tokenizer" / "tokenizer.json").exists()
    assert laboratory.model("qwen3.5-0.8b", "an environment").joinpath("model.safetensors").exists()


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [(1e9 + 1024, "equal"), (1e9 + 1025, "off"), (1e9 - 1024, "equal"), (None, "failed")],
)
def test_bytes_are_equal_to_the_published_digits(figure, verdict):
    answers = Answers({} if figure is None else {"a": figure}, problem="it failed")
    scored = score(BYTES, answers)
    assert scored.verdict == verdict
    assert scored.problem == ("it failed" if figure is None else "")


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ({"batch": 256.0}, "equal"),
        ({"batch": 384.0, "batch-2%": 256.0, "batch+2%": 384.0}, "close"),
        ({"batch": 384.0, "batch-2%": 384.0, "batch+2%": 384.0}, "off"),
    ],
)
def test_a_batch_is_near_if_little_memory_decides(figures, verdict):
    assert score(BATCH, Answers(figures)).verdict == verdict


@pytest.mark.parametrize(("smaller", "said"), [(0, "On the rtx-4090, 10 of 10 that are near"), (3, None)])
def test_a_card_that_had_less_free_memory_than_the_phantom_is_named(tmp_path, smaller, said):
    larger = {"batch": 384.0, "batch-2%": 256.0}
    rows = [score(BATCH, Answers(larger))] * (10 - smaller)
    rows += [score(BATCH, Answers({"batch": 192.0, "batch+2%": 256.0}))] * smaller
    page = tmp_path / "page.md"
    write_page(rows, page, "")
    assert ("less of the card was free" in page.read_text()) is (said is not None)
    assert said is None or said in page.read_text()


def test_residuals_are_those_of_figures_that_say_something_of_ours():
    def scored(job: str, figure: float, row: Row = BYTES, **cause: object) -> Scored:
        own = replace(row, job=job)
        return replace(score(own, Answers({own.item: figure, "a": figure})), **cause)

    rows = [
        scored("one/h100/2025-01-01/table", 1e9),
        scored("one/h100/2025-01-01/table", 8e8),
        scored("one/h100/2025-01-01/table", 1e9 + 1000),  # the published digits
        scored("two/h100/2025-01-01/table", 2e9),
        scored("theirs/h100/2025-01-01/table", 5e8, whose="theirs"),
        scored("said/h100/2025-01-01/table", 5e8, whose="ours", is_said=True),
        scored("infer/net/224", 128.0, BATCH),
        score(BYTES, None),
    ]
    assert residuals(rows).projects == {"liger": ((0.0, pytest.approx(0.25)), (-0.5, -0.5))}
    (group,) = parse(as_text(rows))["phantom"].values()
    assert group == ProjectResiduals({"liger": ((0.0, 0.25), (-0.5, -0.5))})
    held = holds(rows, 0.9)
    assert held["liger"] == (0, 2)  # outside of what the runs of the paper's authors give
    assert held["xmem_paper"][1] > 30


def test_other_estimators_are_asked_about_the_published_batch_and_the_next_larger_one(tmp_path):
    tried = [rivals._next_smaller(batch) for batch in (512, 384, 256, 192, 3, 2)]
    assert tried == [384, 256, 192, 128, 2, 1]
    one = replace(BATCH, job="train-amp/net/224", kind="training", gpu="rtx-3090", truth=192.0)
    most = replace(one, job="train-amp/small/224", truth=512.0)
    assert (rivals._batches(one), rivals._batches(most)) == ([192, 256], [512])
    assert json.loads(rivals._question(one, 256)) == {
        "family": "cnn", "model": "timm/net", "optimizer": "SGD", "batch": 256, "pixels": 224,
        "precision": "bf16",
    }  # fmt: skip
    few, many = 20 << 30, 24 << 30  # of a card with 24 GiB, less its context

    def said(method: str, *peaks: int | None) -> list[rivals.Said]:
        asked = [(one, 192), (one, 256), (most, 512)]
        return [
            rivals.Said(method, row.job, batch, peak, "" if peak else "no answer")
            for (row, batch), peak in zip(asked, peaks, strict=True)
        ]

    told = [*said("right", few, many, few), *said("low", few, few, few), *said("high", many, many, None)]
    rivals._write(tmp_path, told)
    assert sorted(map(str, rivals.read(tmp_path))) == sorted(map(str, told))
    assert list(rivals.judge([one, most], told)) == [
        rivals.Verdicts("right", 2, 2, right=2, too_large=0, too_small=0),
        rivals.Verdicts("low", 2, 2, right=1, too_large=1, too_small=0),
        rivals.Verdicts("high", 2, 1, right=0, too_large=0, too_small=1),
    ]


def test_rows_whose_estimate_says_what_they_depend_on():
    late = replace(BYTES, project="modded_nanogpt", job="short/BosAlign/2025-07-12/2.8", item="reserved")
    assert score(late, Answers({"reserved": 9e8})).is_said
    assert not score(BYTES, Answers({"a": 9e8})).is_said


def test_causes_and_rows_that_measure_something_else():
    left_out = replace(BYTES, job="embedding/h100/2025-01-01/table")
    assert score(left_out, None).verdict == "left out"
    leaky = replace(BYTES, job="kto_loss/h100/2025-03-03/table", item="liger full V=1024 {}")
    assert score(leaky, Answers({"liger full V=1024 {}": 5e8})).whose == "theirs"
    assert score(BYTES, None).verdict == "not run"


def test_answers_come_back_as_they_were_put(tmp_path):
    tables = AnswerTables(tmp_path / "figures")
    assert tables.read("timm") == {}
    first = Answers({"batch": 1.0, "batch-2%": 0.5}, {"other": 'a, "b"'}, torch="2.9.1", version="old")
    tables.put("timm", "infer/net/224", first)
    tables.put("timm", "infer/a/224", Answers(problem="it failed\nin many lines", version="old"))
    tables.put("liger", "rope", Answers({"a b=1 {}": 2.0**53}, version="old"))
    again = AnswerTables(tmp_path / "figures").read("timm")
    assert again == {"infer/a/224": Answers(problem="it failed", version="old"), "infer/net/224": first}
    assert tables.read("liger")["rope"].figures == {"a b=1 {}": 2.0**53}
    tables.put("timm", "infer/net/224", Answers({"batch": 2.0}, version="new"))
    assert tables.read("timm")["infer/net/224"] == Answers({"batch": 2.0}, version="new")
    assert len(tables.read("timm")) == 2


def test_a_damaged_table_of_answers_names_its_line(tmp_path):
    tables = AnswerTables(tmp_path)
    tables.put("timm", "infer/net/224", Answers({"batch": 1.0}))
    table = tmp_path / "timm.csv"
    table.write_text(table.read_text().replace("batch,1", "batch,one"))
    with pytest.raises(TraceError, match="line 2 is not an answer"):
        tables.put("timm", "infer/other/224", Answers({"batch": 1.0}))
    assert "infer/other" not in table.read_text()


def test_answers_of_another_version_and_failures_run_again_if_that_is_wanted():
    failed = Answers(problem="it failed", version="new")
    assert is_open(BATCH, None, "new", retry=False)
    assert is_open(BATCH, Answers({"batch": 1.0}, version="old"), "new", retry=False)
    assert not is_open(BATCH, Answers({"batch": 1.0}, version="old"), None, retry=False)
    assert not is_open(BATCH, failed, "new", retry=False)
    assert is_open(BATCH, failed, "new", retry=True)


def test_a_job_that_runs_is_left_to_whoever_runs_it(tmp_path):
    other = replace(BATCH, job="infer/other/224")
    with (
        claimed(BATCH, tmp_path) as first,
        claimed(BATCH, tmp_path) as second,
        claimed(other, tmp_path) as third,
    ):
        assert (first, second, third) == (True, False, True)
    with claimed(BATCH, tmp_path) as again:
        assert again


def test_every_kind_and_card_has_a_turn_before_any_has_two():
    rows = [
        replace(BATCH, job=f"{gpu}/{number}", gpu=gpu)
        for gpu, count in (("rtx-4090", 5), ("rtx-3090", 2))
        for number in range(count)
    ]
    turns = in_turns([*rows, *rows])
    assert sorted(row.job for row in turns) == sorted(row.job for row in rows)
    assert {row.gpu for row in turns[:2]} == {row.gpu for row in turns[2:4]} == {"rtx-4090", "rtx-3090"}
    assert in_turns(rows) == turns


def test_what_one_figure_can_reach_of_runs_that_differ():
    assert reachable_by_one_figure([100.0, 100.1, 100.2], 0.001) == 3
    assert reachable_by_one_figure([90.0, 100.0, 100.1, 103.0], 0.001) == 2
    assert reachable_by_one_figure([90.0, 100.0, 110.0], 0.001) == 1


def test_the_page_sets_runs_that_were_repeated_against_what_one_figure_can_reach(tmp_path):
    page = tmp_path / "scoreboard.md"
    of_two = [replace(BYTES, job="a", truth=truth) for truth in (1.000e9, 1.0005e9, 1.03e9)]
    alone = replace(BYTES, job="b")
    write_page([score(row, Answers({"a": 1.0301e9})) for row in (*of_two, alone)], page, "")
    line = "| liger | operators, allocated | 1 | 3 | 2 (67%) | 1 (33%) | 1 (100%) | 3.00% |"
    assert line in page.read_text()


def test_the_page_has_a_line_for_each_group_and_a_reason_for_each_gap(tmp_path):
    page = tmp_path / "scoreboard.md"
    scored = [
        score(replace(BYTES, rival=0.97e9), Answers({"a": 1.02e9}, version="old")),
        score(BATCH, Answers({"batch": 256.0}, version="new")),
        score(replace(BATCH, job="infer/other/224"), Answers(problem="no | module\nmore")),
    ]
    write_page(scored, page, "new")
    text = page.read_text()
    assert "1 of the 2 figures of ours were made by earlier versions" in text
    assert (
        "| liger | operators, allocated | 1 | 0 | 1 | 0 (0%) | 0 (0%) | 0 (0%) | 2.00% | 2.00% | 2.00% |"
        in text
    )
    assert "| timm | inference | rtx-4090 | 2.9.1 | the same | 2 | 1 | 1 (100%) |" in text
    assert "| liger | rope/h100/2025-01-01/table | 1 | +2.00% | unknown | unknown |" in text
    assert "| liger | rope/h100/2025-01-01/table | 0.931 GiB | -3.00% | +2.00% |" in text
    assert "| timm | 1 | no / module |" in text
    picture = tmp_path / "scoreboard.svg"
    assert f"({picture.name})" in text
    drawn = picture.read_bytes()
    write_page(scored, page, "new")
    assert picture.read_bytes() == drawn
