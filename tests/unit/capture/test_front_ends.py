"""Whose a YAML file is, and the command that trains from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import xmem_fast
from xmem.capture.front_ends import command_for
from xmem.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "stacks" / "scripts" / "configs"
TORCHTUNE = """# Runs on one card:
#   tune run lora_finetune_single_device --config llama3_2/1B_lora_single_device
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
"""


def test_files_of_the_stacks_give_the_commands_of_the_stacks() -> None:
    llamafactory, axolotl = CONFIGS / "llamafactory_lora.yaml", CONFIGS / "axolotl_lora.yaml"
    assert command_for(llamafactory) == ["llamafactory-cli", "train", str(llamafactory)]
    assert command_for(axolotl) == ["python", "-m", "axolotl.cli.train", str(axolotl)]


def test_torchtune_names_its_recipe_at_the_head(tmp_path: Path) -> None:
    config = tmp_path / "lora.yaml"
    config.write_text(TORCHTUNE)
    assert command_for(config) == ["tune", "run", "lora_finetune_single_device", "--config", str(config)]
    config.write_text(TORCHTUNE.partition("\n")[2].partition("\n")[2])
    with pytest.raises(ConfigError, match="does not name its recipe"):
        command_for(config)


def test_other_files_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "other.yaml"
    config.write_text("name: value\n")
    refused = xmem_fast("run", "--config", config)
    assert refused.exit_code == 2
    assert "is not a configuration of" in refused.output
    assert xmem_fast("run", "--gpu", "t4").exit_code == 2
