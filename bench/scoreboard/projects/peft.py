"""PEFT's method comparison: fine-tuning one model with each of its methods, on an L40S.

Each result names the commit of PEFT that ran. Images are resized to one size and prompts padded to one
length, so data made up here lead to the same tensors. ``run.py`` measures what the allocator has reserved:
its peak during training, without that of the evaluations between, and after each step.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scoreboard.answers import Answers
from scoreboard.laboratory import Laboratory
from scoreboard.rows import Row, card_of, read_sources

NAME = "peft"
FILE = "peft_method_comparison.csv"
_REPOSITORY = "huggingface/peft"
_ENVIRONMENT = "torch-2.12.0-diffusers-0.38"
_TASKS = {"image-gen": "fine-tuning, images", "MetaMathQA": "fine-tuning, text"}
_MODELS = {
    "black-forest-labs/FLUX.2-klein-base-4B": "flux2-klein-base-4b",
    "facebook/dinov2-base": "dinov2-base",
}
_IMAGE = b"P6 8 8 255\n" + bytes(8 * 8 * 3)
_CARDS = {"NVIDIA L40S": "l40s"}
# By how the metric begins.
_ITEMS = {"max_memory_reserved": "max", "99th percentile": "99th", "mean": "mean"}
# The cache is emptied after an evaluation, and training has more memory from then on, to its end: of the
# steps after the first evaluation, ten stand for all. Of the evaluations, which are in no figure, less is
# kept: one step of denoising instead of twenty, and one image instead of ten and five after the training.
_STEPS_AFTER = 10
_SHORTER = {"num_inference_steps": 1, "drift_image_prompts": ["a photo of cat"], "sample_image_prompts": []}


def rows(data: Path) -> Iterator[Row]:
    """The published peaks, percentiles and means; a job is an experiment."""
    for source in read_sources(data / FILE):
        _, task, _, result = source.path.split("/")
        item = next((name for begin, name in _ITEMS.items() if source.metric.startswith(begin)), "")
        if task not in _TASKS or not item:
            continue
        release = source.torch.split()[1].partition("+")[0]
        yield Row(
            project=NAME,
            job=f"{task}/{Path(result).stem.replace('--', '/', 1)}",
            item=item,
            kind=_TASKS[task],
            gpu=card_of(source, _CARDS, NAME),
            torch=release,
            quantity="reserved",
            truth=float(source.value),
            rounding=1.0,  # means and percentiles are cut to whole bytes
            is_rebuilt=_ENVIRONMENT.startswith(f"torch-{release}-"),
        )


def run(row: Row, laboratory: Laboratory) -> Answers:
    """Run the experiment with fewer steps."""
    task, experiment = row.job.split("/", 1)
    path = f"method_comparison/{task}/results/{experiment.replace('/', '--')}.json"
    published = json.loads(laboratory.git(_REPOSITORY, "show", f"HEAD:{path}"))
    commit = published["meta_info"]["package_info"]["peft-commit-hash"]
    steps, evaluation = (published["run_info"]["train_config"][name] for name in ("max_steps", "eval_steps"))
    code = laboratory.code(_REPOSITORY, commit, ("src", "method_comparison"))
    with tempfile.TemporaryDirectory(prefix="scoreboard-") as scratch:
        work = Path(scratch) / task
        shutil.copytree(code / "method_comparison" / task, work)
        _shorten(work / "experiments" / experiment / "training_params.json", evaluation + _STEPS_AFTER)
        _put_models_and_images(work, laboratory)
        # The script notes the branch of PEFT's repository; results of other branches than main are set apart.
        history = Path(scratch) / "repository"
        _make_repository(history)
        ran = laboratory.on_phantom(
            [laboratory.python(_ENVIRONMENT), "run.py", "-v", "--clean", f"experiments/{experiment}"],
            row.gpu,
            variables={
                "PYTHONPATH": str(code / "src"),
                "GIT_DIR": str(history / ".git"),
                "HF_HOME": str(Path(scratch) / "huggingface"),
                "HF_HUB_OFFLINE": "1",
            },
            folder=work,
        )
        results = list((work / "temporary_results").glob("*.json"))
        said = json.loads(results[0].read_text()) if results else {}
    torch = laboratory.torch(_ENVIRONMENT)
    if said.get("train_info", {}).get("status") != "success":
        error = said.get("run_info", {}).get("error_msg")
        return Answers(problem=error or ran.problem or ran.output[-300:] or "no result", torch=torch)
    return Answers(figures(said["train_info"], evaluation, steps), torch=torch)


def figures(train_info: dict[str, Any], evaluation: int, steps: int) -> dict[str, float]:
    """Our figures in bytes, in the script's own definitions.

    Args:
        train_info: What the script wrote of a run that ended ten steps after its first evaluation.
        evaluation: Steps before that evaluation.
        steps: Steps of the whole run, for which the mean is.
    """
    before = train_info["metrics"][0]["mem reserved avg"]
    both = train_info["accelerator_memory_reserved_avg"] * (evaluation + _STEPS_AFTER)
    after = (both - before * evaluation) / _STEPS_AFTER
    return {
        "max": float(train_info["accelerator_memory_max"]),
        "99th": float(train_info["accelerator_memory_reserved_99th"]),
        "mean": (before * evaluation + after * (steps - evaluation)) / steps,
    }


def _shorten(parameters: Path, steps: int) -> None:
    own = json.loads(parameters.read_text()) if parameters.exists() else {}
    parameters.write_text(json.dumps(own | _SHORTER | {"max_steps": steps}))


def _put_models_and_images(work: Path, laboratory: Laboratory) -> None:
    """Put what the script loads where it looks first: in a folder of that name below the current one."""
    parameters = json.loads((work / "default_training_params.json").read_text())
    for name in (parameters["model_id"], parameters["dino_model_id"]):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).symlink_to(laboratory.model(_MODELS[name], _ENVIRONMENT, parameters["dtype"]))
    images = work / parameters["dataset_id"] / parameters["dataset_split"]
    images.mkdir(parents=True)
    for number in range(len(parameters["instance_prompts"])):
        (images / f"{number:02}.ppm").write_bytes(_IMAGE)


def _make_repository(folder: Path) -> None:
    subprocess.run(["git", "init", "--quiet", "--initial-branch", "scoreboard", folder], check=True)
    identity = ["-c", "user.name=scoreboard", "-c", "user.email=scoreboard"]
    commit = ["commit", "--quiet", "--allow-empty", "--message", "Empty"]
    subprocess.run(["git", "-C", folder, *identity, *commit], check=True)
