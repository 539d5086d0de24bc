"""Programs that train from a YAML file: whose a file is, how its users start it, and what model it names.

Only the names at the margin of the file are looked at, and the model. The program reads the rest.
Sources: ``axolotl/cli/train.py``, ``llamafactory/hparams/parser.py``, ``torchtune/_cli/run.py``. All three
take settings on the command line that replace those of the file: axolotl ``--name=VALUE`` (``load_cfg``),
LLaMA-Factory (``read_args``) and torchtune (``config/_parse.py``) ``name=VALUE``.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from xmem.errors import ConfigError
from xmem.records import dataclass

_KEY = re.compile(r"^([A-Za-z_][A-Za-z_0-9]*)\s*:", re.MULTILINE)
# torchtune's files say at their head how they are run; nothing else in them names the recipe.
_RECIPE = re.compile(r"^#.*\btune run\b(?P<options>.*?)(?P<recipe>[\w./]+)\s+--config\b", re.MULTILINE)
# What axolotl's file may name beside the model, which is by default the model's own.
_PARTS_OF_AXOLOTL = ("base_model_config", "tokenizer_config", "processor_config")


@dataclass(frozen=True)
class Training:
    """What a configuration starts.

    Attributes:
        command: The command that trains from it.
        model: The model that it names, a folder or a name on the hub; empty where it names none that
            ``from_pretrained`` would load.
        settings: Settings for the command line that name another folder of the model, as `FOLDER`.
    """

    command: list[str]
    model: str = ""
    settings: tuple[str, ...] = ()

    def command_with(self, folder: Path) -> list[str]:
        """Return the command that trains the model of another folder."""
        return [*self.command, *(setting.replace(FOLDER, str(folder)) for setting in self.settings)]


FOLDER = "<folder>"
"""Stands for the folder of the model."""


def training_of(config: Path) -> Training:
    """Return what a configuration starts.

    Raises:
        ConfigError: The file cannot be read, or is of no program that is known here.
    """
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {config} cannot be read ({error})", "name a YAML file") from None
    keys = set(_KEY.findall(text))
    if {"model_name_or_path", "stage"} <= keys:
        return Training(
            ["llamafactory-cli", "train", str(config)],
            _value(text, "model_name_or_path"),
            (f"model_name_or_path={FOLDER}",),
        )
    if {"base_model", "datasets"} <= keys or {"base_model", "pretraining_dataset"} <= keys:
        model = _value(text, "base_model")
        same = [part for part in _PARTS_OF_AXOLOTL if _value(text, part) == model]
        settings = tuple(f"--{key}={FOLDER}" for key in ("base_model", *same))
        return Training(["python", "-m", "axolotl.cli.train", str(config)], model, settings)
    if "_component_:" in text and {"model", "tokenizer"} <= keys:
        recipe = _RECIPE.search(text)
        if recipe is None:
            raise ConfigError(
                f"{config} is of torchtune, and does not name its recipe",
                f"give the command: xmem-fast run -- tune run RECIPE --config {config}",
            )
        command = ["tune", "run", recipe["recipe"], "--config", str(config)]
        checkpointer = _section(text, "checkpointer")
        if not _value(checkpointer, "_component_").endswith("FullModelHFCheckpointer"):
            return Training(command)  # weights under names of its own or of Meta's
        settings = (
            f"checkpointer.checkpoint_dir={FOLDER}",
            "checkpointer.checkpoint_files=[model.safetensors]",
        )
        return Training(command, _value(checkpointer, "checkpoint_dir"), settings)
    raise ConfigError(
        f"{config} is not a configuration of axolotl, LLaMA-Factory or torchtune",
        "give the command that trains from it, after --",
    )


def _value(text: str, key: str) -> str:
    """Return the text of a setting at the margin; empty if there is none, or where it depends on another."""
    found = re.search(rf"^{key}[ \t]*:[ \t]*([^\n]*)", text, re.MULTILINE)
    value = "" if found is None else found[1].strip()
    if quoted := re.match(r"""(['"])(.*?)\1""", value):
        value = quoted[2]
    else:
        value = re.sub(r"(^|\s)#.*", "", value).strip()
    return "" if "${" in value or value in ("null", "~") else value


def _section(text: str, key: str) -> str:
    """Return the lines below a key, moved to the margin."""
    found = re.search(rf"^{key}[ \t]*:[^\n]*\n((?:[ \t]+[^\n]*\n|\s*\n)+)", f"{text}\n", re.MULTILINE)
    return "" if found is None else textwrap.dedent(found[1])
