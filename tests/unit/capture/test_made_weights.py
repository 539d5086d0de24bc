"""Weights that are made from a model's config: when, where, and that transformers loads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from command_line import xmem_fast
from nightly import most_nightly
from xmem.capture.front_ends import FOLDER, Training
from xmem.capture.made_weights import make_weights, with_weights
from xmem.errors import ConfigError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
# By hand: embeddings, which the head is tied to; two layers of attention, MLP and two norms; the last norm.
PARAMETERS = 1000 * 64 + 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 128 + 2 * 64) + 64


# What a training script would see of a model.
LOAD = """
import sys, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], torch_dtype="auto")
weight = model.model.layers[1].mlp.up_proj.weight
print(sum(parameter.numel() for parameter in model.parameters()), model.dtype, bool(weight.any()))
"""


@cache
def transformers_python() -> Path:
    """Return an interpreter whose transformers works; a torchvision of another build of torch breaks it."""
    for python in (sys.executable, *os.environ.get("XMEM_PHANTOM_PYTHONS", "").split(os.pathsep)):
        question = [python, "-c", "from transformers import LlamaForCausalLM"]
        if python and not subprocess.run(question, capture_output=True, check=False).returncode:
            return Path(python)
    pytest.skip("no transformers that works: set XMEM_PHANTOM_PYTHONS")


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XMEM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def training(model: str) -> Training:
    return Training(["train"], model, (f"model={FOLDER}",))


def model_folder(folder: Path, config: object = LLAMA, tokenizer: str = "tokenizer.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer:
        (folder / tokenizer).write_text("{}")
    return folder


def in_hub_cache(tmp_path: Path, name: str) -> Path:
    repository = tmp_path / "hf" / "hub" / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    return model_folder(repository / "snapshots" / "abc123")


@pytest.mark.parametrize("place", most_nightly(["folder", "cache"]))
def test_what_is_made_is_loaded_by_transformers(tmp_path: Path, place: str) -> None:
    python, name = transformers_python(), "org/small-llama"
    where = model_folder(Path(name)) if place == "folder" else in_hub_cache(tmp_path, name)
    before = sorted(where.iterdir())
    with with_weights(training(name), ["--more"], python) as ready:
        assert (ready.command[0], ready.command[2:]) == ("train", ["--more"])
        assert "made the weights of org/small-llama from its config" in ready.note
        folder = Path(ready.command[1].removeprefix("model="))
        weights = (folder / "model.safetensors").stat()
        assert weights.st_size > 2 * PARAMETERS
        assert weights.st_blocks * 512 < 64 * 1024  # the header alone
        loaded = subprocess.run([python, "-c", LOAD, folder], capture_output=True, text=True, check=True)
        assert loaded.stdout.split() == [str(PARAMETERS), "torch.bfloat16", "False"]
        assert (folder / "tokenizer.json").read_text() == "{}"
    assert not folder.exists()
    assert sorted(where.iterdir()) == before


def test_weights_that_are_there_are_left_to_the_program() -> None:
    folder = model_folder(Path("model"))
    (folder / "model.safetensors").touch()
    with with_weights(training("model"), []) as ready:
        assert (ready.command, ready.note) == (["train"], "")


def test_an_index_whose_shards_are_missing_is_no_weights() -> None:
    python = transformers_python()
    folder = model_folder(Path("model"))
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1-of-2.safetensors").touch()
    with with_weights(training("model"), [], python) as ready:
        made = Path(ready.command[1].removeprefix("model="))
        names = {file.name for file in made.iterdir()} - {"owner"}
        assert names == {"config.json", "model.safetensors", "tokenizer.json"}
    (folder / "model-2-of-2.safetensors").touch()
    with with_weights(training("model"), []) as ready:
        assert ready.command == ["train"]


def test_without_a_config_it_is_said_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_weights(training("org/model"), []) as ready:
        assert ready.command == ["train"]  # it may download the model
    where = tmp_path / "here" / "org" / "model"
    assert f"put config.json and tokenizer.json of the model into {where}" in ready.note
    assert "hf download org/model --exclude '*.safetensors'" in ready.note
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused = pytest.raises(ConfigError, match=r"org/model is not on this machine; put config\.json")
    with refused, with_weights(training("org/model"), []):
        pass
    refused = pytest.raises(ConfigError, match=r"no model in /no/such/place; put config\.json")
    with refused, with_weights(training("/no/such/place"), []):
        pass


def test_without_a_tokenizer_it_is_said_where_to_put_it() -> None:
    folder = model_folder(Path("model"), tokenizer="").absolute()
    refused = pytest.raises(
        ConfigError, match=f"has no tokenizer; put tokenizer.json of the model into {folder}"
    )
    with refused, with_weights(training("model"), []):
        pass


@pytest.mark.parametrize(
    ("change", "says"),
    most_nightly(
        [
            ({"architectures": ["NoSuchModel"]}, "has no model NoSuchModel; download its weights"),
            ({"architectures": None}, "no model for a config without architectures"),
            ({"model_type": "nothing-of-this-name"}, "does not read its config"),
            ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "it is quantized"),
        ]
    ),
)
def test_a_model_that_cannot_be_made_is_refused(change: dict[str, object], says: str) -> None:
    python = transformers_python()
    model_folder(Path("model"), {**LLAMA, **change})
    with pytest.raises(ConfigError, match=says), with_weights(training("model"), [], python):
        pass


def test_the_command_ends_before_it_runs_where_the_model_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("lora.yaml").write_text("model_name_or_path: org/model\nstage: sft\n")
    refused = xmem_fast("run", "--gpu", "h100", "--config", "lora.yaml")
    assert refused.exit_code == 2
    assert "put config.json and tokenizer.json of the model into" in refused.output
    assert "running" not in refused.output


# As a model of diffusers: it is made from the config as a whole, which names its class and no type.
DIFFUSERS = """
import torch
__version__ = "0.38.0"
class Net(torch.nn.Module):
    @classmethod
    def from_config(cls, config):
        net = cls()
        net.proj = torch.nn.Linear(config["width"], 3, bias=False)
        net.norm = torch.nn.BatchNorm1d(3, affine=False)
        return net
"""


@pytest.fixture
def diffusers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (tmp_path / "packages" / "diffusers").mkdir(parents=True)
    (tmp_path / "packages" / "diffusers" / "__init__.py").write_text(DIFFUSERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))


@pytest.mark.usefixtures("diffusers")
def test_the_weights_of_a_model_of_diffusers_have_the_type_that_is_asked_for(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "net", {"_class_name": "Net", "width": 5}, tokenizer="")
    file = folder / "weights.safetensors"
    assert make_weights(folder, file, sys.executable, "net", "bfloat16") == 5 * 3 * 2 + 2 * 3 * 2 + 8
    length = int.from_bytes(file.read_bytes()[:8], "little")
    header = json.loads(file.read_bytes()[8 : 8 + length])
    assert header["proj.weight"]["dtype"] == "BF16"
    assert header["proj.weight"]["shape"] == [3, 5]
    assert header["norm.num_batches_tracked"] == {"dtype": "I64", "shape": [], "data_offsets": [0, 8]}
    assert file.stat().st_size == 8 + length + 50


@pytest.mark.usefixtures("diffusers")
def test_a_model_that_diffusers_does_not_have_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "net", {"_class_name": "Other"}, tokenizer="")
    with pytest.raises(ConfigError, match=r"diffusers 0\.38\.0 has no model Other"):
        make_weights(folder, folder / "weights.safetensors", sys.executable, "net", "bfloat16")
