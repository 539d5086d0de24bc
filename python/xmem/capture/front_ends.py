"""Commands of programs that train from a YAML file: which program a file is for, and how its users start it.

Only the names at the margin of the file are looked at: they say whose it is. The program reads the rest.
Sources: ``axolotl/cli/train.py``, ``llamafactory/hparams/parser.py``, ``torchtune/_cli/run.py``.
"""

from __future__ import annotations

import re
from pathlib import Path

from xmem.errors import ConfigError

_KEY = re.compile(r"^([A-Za-z_][A-Za-z_0-9]*)\s*:", re.MULTILINE)
# torchtune's files say at their head how they are run; nothing else in them names the recipe.
_RECIPE = re.compile(r"^#.*\btune run\b(?P<options>.*?)(?P<recipe>[\w./]+)\s+--config\b", re.MULTILINE)


def command_for(config: Path) -> list[str]:
    """Return the command that trains from a configuration.

    Raises:
        ConfigError: The file cannot be read, or is of no program that is known here.
    """
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {config} cannot be read ({error})", "name a YAML file") from None
    keys = set(_KEY.findall(text))
    if {"model_name_or_path", "stage"} <= keys:
        return ["llamafactory-cli", "train", str(config)]
    if {"base_model", "datasets"} <= keys or {"base_model", "pretraining_dataset"} <= keys:
        return ["python", "-m", "axolotl.cli.train", str(config)]
    if "_component_:" in text and {"model", "tokenizer"} <= keys:
        recipe = _RECIPE.search(text)
        if recipe is None:
            raise ConfigError(
                f"{config} is of torchtune, and does not name its recipe",
                f"give the command: xmem-fast run -- tune run RECIPE --config {config}",
            )
        return ["tune", "run", recipe["recipe"], "--config", str(config)]
    raise ConfigError(
        f"{config} is not a configuration of axolotl, LLaMA-Factory or torchtune",
        "give the command that trains from it, after --",
    )
