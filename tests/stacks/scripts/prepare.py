"""Write what a stack's own command reads: a model, a data set. Run before it, without xMem."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np


def yolo():
    from PIL import Image

    random = np.random.default_rng(0)
    for part in ("train", "val"):
        pictures, labels = Path("data/images", part), Path("data/labels", part)
        pictures.mkdir(parents=True)
        labels.mkdir(parents=True)
        for index in range(24):
            Image.fromarray(random.integers(0, 255, (128, 128, 3), np.uint8)).save(pictures / f"{index}.png")
            (labels / f"{index}.txt").write_text("0 0.5 0.5 0.3 0.4\n1 0.3 0.3 0.2 0.2\n")
    Path("data.yaml").write_text(
        f"path: {Path('data').resolve()}\ntrain: images/train\nval: images/val\nnames: [a, b]\n"
    )


def nnunet():
    import nibabel

    random = np.random.default_rng(0)
    folder = Path("raw", "Dataset001_Made")
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True)
    for index in range(6):
        volume = random.normal(size=(64, 64, 12)).astype(np.float32)
        mask = np.zeros((64, 64, 12), np.uint8)
        mask[16:40, 16:40, 3:9] = 1
        nibabel.save(
            nibabel.Nifti1Image(volume, np.eye(4)), folder / "imagesTr" / f"case_{index}_0000.nii.gz"
        )
        nibabel.save(nibabel.Nifti1Image(mask, np.eye(4)), folder / "labelsTr" / f"case_{index}.nii.gz")
    said = {
        "channel_names": {"0": "CT"},
        "labels": {"background": 0, "made": 1},
        "numTraining": 6,
        "file_ending": ".nii.gz",
    }
    (folder / "dataset.json").write_text(json.dumps(said))
    tool = Path(sys.executable).with_name("nnUNetv2_plan_and_preprocess")
    subprocess.run([tool, "-d", "1", "-c", "2d", "-np", "1", "-npfp", "1"], check=True)


def llama():
    from synthetic import save_llama

    save_llama("model")


def conversations():
    """A model, and data as LLaMA-Factory (alpaca) and the others (messages) read it."""
    import pandas
    from synthetic import WORDS

    llama()
    Path("data").mkdir()
    alpaca = [{"instruction": "the quick fox", "input": "", "output": WORDS[:600]}] * 64
    Path("data/alpaca.json").write_text(json.dumps(alpaca))
    Path("data/dataset_info.json").write_text(json.dumps({"made": {"file_name": "alpaca.json"}}))
    messages = [{"role": "user", "content": "the quick fox"}, {"role": "assistant", "content": WORDS[:600]}]
    Path("data/messages.jsonl").write_text(
        "".join(json.dumps({"messages": messages}) + "\n" for _ in range(64))
    )
    pandas.DataFrame({"messages": [messages] * 64}).to_parquet("data/messages.parquet")


def litgpt():
    """A checkpoint in LitGPT's form, and the data of ``conversations``."""
    import torch
    from litgpt import GPT, Config
    from litgpt.utils import save_config

    conversations()
    config = Config.from_name("pythia-14m", block_size=512, padded_vocab_size=1024)
    torch.save(GPT(config).state_dict(), "model/lit_model.pth")
    save_config(config, Path("model"))


if __name__ == "__main__":
    {"yolo": yolo, "nnunet": nnunet, "llama": llama, "conversations": conversations, "litgpt": litgpt}[
        sys.argv[1]
    ]()
