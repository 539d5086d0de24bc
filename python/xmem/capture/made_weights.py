"""Weights for models of which only the config is here, so that nothing is downloaded.

A model is looked for where transformers looks: a folder of its name, then the hub's cache
(``huggingface_hub/file_download.py``, ``try_to_load_from_cache``).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from xmem.capture.front_ends import Training
from xmem.capture.interpreter import find_torch, path_with, with_python
from xmem.errors import ConfigError
from xmem.files.cache import cache_folder, make_private
from xmem.files.scratch import scratch_folder
from xmem.records import dataclass
from xmem.text.units import format_bytes

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "consolidated*.pth")
_INDEX = "*.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.*", "spiece.model", "*.tiktoken", "tekken.json")
_NO_WEIGHTS = "--exclude '*.safetensors' '*.bin' '*.pth' '*.gguf'"
_MAKE_S = 300.0
_MAKER = Path(__file__).parent / "child" / "make_weights.py"


@dataclass(frozen=True)
class ReadyTraining:
    """A command whose model is as complete as it can be made here.

    Attributes:
        command: The command.
        note: What was done or is to be known, for the user; empty if nothing was.
    """

    command: list[str]
    note: str = ""


@contextmanager
def with_weights(
    training: Training, arguments: Sequence[str], python: Path | None = None
) -> Iterator[ReadyTraining]:
    """Make the weights of the model that a training names, if its config is here and they are not.

    What is made is removed when the block ends.

    Args:
        training: What a configuration starts.
        arguments: What the user adds to the command.
        python: Interpreter of the command, None when the command names it.

    Raises:
        ConfigError: The weights cannot be made, or there is no config and the hub must not be asked.
    """
    as_it_is = [*training.command, *arguments]
    environment = dict(os.environ)
    name = training.model
    folder = _folder_of(name, environment) if name else None
    if folder is None or not (folder / "config.json").is_file():
        yield ReadyTraining(as_it_is, _missing(name, folder, environment) if name else "")
        return
    if _has_weights(folder):
        yield ReadyTraining(as_it_is)
        return
    if not any(found for pattern in _TOKENIZERS for found in folder.glob(pattern)):
        raise ConfigError(f"{folder} has no tokenizer", _fetch(name, folder, "tokenizer.json"))
    make_private(cache_folder())
    with scratch_folder("made-weights-", cache_folder()) as made:
        # Not in memory: a temporary folder often is, and there a file of holes takes what is read of it.
        for file in folder.iterdir():
            if not any(file.match(pattern) for pattern in (*_WEIGHTS, _INDEX)):
                (made / file.name).symlink_to(file.resolve())
        size = make_weights(
            folder, made / "model.safetensors", _interpreter_of(as_it_is, python, environment), name
        )
        yield ReadyTraining(
            [*training.command_with(made), *arguments],
            f"made the weights of {name} from its config: {format_bytes(size)} of zeros, which take no room",
        )


def _folder_of(name: str, environment: Mapping[str, str]) -> Path | None:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.absolute()
    if not _HUB_NAME.fullmatch(name):
        return None
    repository = _hub_cache(environment) / f"models--{name.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    snapshot = repository / "snapshots" / revision
    return snapshot if snapshot.is_dir() else None


def _hub_cache(environment: Mapping[str, str]) -> Path:
    """Return the hub's cache (``huggingface_hub/constants.py``)."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(variable):
            return Path(environment[variable]).expanduser()
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or f"{cache}/huggingface"
    return Path(home).expanduser() / "hub"


def _has_weights(folder: Path) -> bool:
    for index in folder.glob(_INDEX):
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, LookupError, AttributeError):
            continue
        if not all((folder / str(shard)).exists() for shard in shards):
            return False
    return any(found for pattern in _WEIGHTS for found in folder.glob(pattern))


def _missing(name: str, folder: Path | None, environment: Mapping[str, str]) -> str:
    """Say what is not here, for a program that will look for it elsewhere.

    Raises:
        ConfigError: It must not.
    """
    if folder is None and not _HUB_NAME.fullmatch(name):
        folder = Path(name).expanduser().absolute()
        raise ConfigError(f"there is no model in {folder}", _fetch(name, folder, "config.json"))
    what = f"the config of {name} is not on this machine"
    otherwise = _fetch(name, folder or Path(name).absolute(), "config.json")
    offline = any(
        environment.get(variable, "").upper() in ("1", "ON", "YES", "TRUE")
        for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
    if offline or folder is not None:
        raise ConfigError(what, otherwise)
    return (
        f"{what}, so the program downloads the model with its weights; to need the config alone, {otherwise}"
    )


def _fetch(name: str, folder: Path, file: str) -> str:
    """Say which file to put where."""
    also = " and tokenizer.json" if file == "config.json" else ""
    put = f"put {file}{also} of the model into {folder}"
    return f"{put}, or run: hf download {name} {_NO_WEIGHTS}" if _HUB_NAME.fullmatch(name) else put


def _interpreter_of(command: list[str], python: Path | None, environment: dict[str, str]) -> str:
    if python is not None:
        environment = {**environment, "PATH": path_with(python, environment.get("PATH"))}
        command = with_python(python, command)
    build = find_torch(command, environment)
    return sys.executable if build is None else build.python


def make_weights(folder: Path, file: Path, python: str, name: str, dtype: str = "float32") -> int:
    """Make a file of weights that takes no room, and return the bytes of the tensors in it.

    Args:
        folder: Has the model's config.
        file: The file to make.
        python: Interpreter whose transformers or diffusers knows the model.
        name: What to call the model in messages.
        dtype: Of its tensors, where the config does not say it; those of diffusers do not.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        done = subprocess.run(
            [python, str(_MAKER), str(folder), str(file), dtype],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=_MAKE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the weights of {name} cannot be made ({error})", "download them") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["it ended without a word"]
        raise ConfigError(f"the weights of {name} cannot be made from {folder / 'config.json'}", said[-1])
    return int(done.stdout.split()[-1])
