"""Whose a YAML file is, the command that trains from it, and the model that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import xmem_fast
from xmem.capture.front_ends import training_of
from xmem.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "stacks" / "scripts" / "configs"
TORCHTUNE = """# Runs on one card:
#   tune run lora_finetune_single_device --config llama3_2/1B_lora_single_device
output_dir: /tmp/torchtune/llama3_2_1B
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/Llama-3.2-1B-Instruct/original/tokenizer.model
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/Llama-3.2-1B-Instruct/
  checkpoint_files: [
     model.safetensors
  ]
  output_dir: ${output_dir}
resume_from_checkpoint: False
"""


def test_files_of_the_stacks_give_the_commands_of_the_stacks() -> None:
    llamafactory, axolotl = CONFIGS / "llamafactory_lora.yaml", CONFIGS / "axolotl_lora.yaml"
    of_llamafactory, of_axolotl = training_of(llamafactory), training_of(axolotl)
    assert of_llamafactory.command == ["llamafactory-cli", "train", str(llamafactory)]
    assert of_axolotl.command == ["python", "-m", "axolotl.cli.train", str(axolotl)]
    assert of_llamafactory.model == of_axolotl.model == "model"
    assert of_llamafactory.command_with(Path("/m"))[3:] == ["model_name_or_path=/m"]
    assert of_axolotl.command_with(Path("/m"))[4:] == ["--base_model=/m"]


def test_torchtune_names_its_recipe_at_the_head(tmp_path: Path) -> None:
    config = tmp_path / "lora.yaml"
    config.write_text(TORCHTUNE)
    training = training_of(config)
    assert training.command == ["tune", "run", "lora_finetune_single_device", "--config", str(config)]
    assert training.model == "/tmp/Llama-3.2-1B-Instruct/"
    assert training.command_with(Path("/m"))[5:] == [
        "checkpointer.checkpoint_dir=/m",
        "checkpointer.checkpoint_files=[model.safetensors]",
    ]
    config.write_text(TORCHTUNE.replace("HFCheckpointer", "MetaCheckpointer"))
    assert training_of(config).model == ""  # its weights have other names
    config.write_text(TORCHTUNE.partition("\n")[2].partition("\n")[2])
    with pytest.raises(ConfigError, match="does not name its recipe"):
        training_of(config)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("base_model: meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),
        ("base_model:   'a/b'   # the small one", "a/b"),
        ('base_model: "a # b"', "a # b"),
        ("base_model: a/b # the small one", "a/b"),
        ("base_model: a#b", "a#b"),
        ("base_model:", ""),
        ("base_model: ${oc.env:MODEL}", ""),
        ("base_model_config: x\nbase_model: y", "y"),
    ],
)
def test_the_model_is_read_as_yaml_has_it(tmp_path: Path, text: str, model: str) -> None:
    config = tmp_path / "axolotl.yaml"
    config.write_text(f"{text}\ndatasets:\n  - path: base_model\n")
    assert training_of(config).model == model


def test_parts_of_axolotl_that_name_the_model_move_with_it(tmp_path: Path) -> None:
    config = tmp_path / "axolotl.yaml"
    config.write_text("base_model: a/b\ntokenizer_config: a/b\nprocessor_config: other\ndatasets: []\n")
    moved = training_of(config).command_with(Path("/m"))
    assert moved[4:] == ["--base_model=/m", "--tokenizer_config=/m"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "other.yaml"
    config.write_text("name: value\n")
    refused = xmem_fast("run", "--config", config)
    assert refused.exit_code == 2
    assert "is not a configuration of" in refused.output
    assert xmem_fast("run", "--gpu", "t4").exit_code == 2
