"""Make a folder that ``from_pretrained`` loads, from the model's config alone.

    python make_model.py CONFIG.json FOLDER

The weights are a file of holes: it has the right length, takes no room on the disk, and reads as zeros.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import torch
import transformers

_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.int64: "I64"}


def main() -> None:
    config_file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(config_file, folder / "config.json")
    config = transformers.AutoConfig.from_pretrained(folder)
    model_class = getattr(transformers, config.architectures[0])
    torch.set_default_dtype(config.dtype)
    with torch.device("meta"):
        model = model_class(config)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in seen:  # tied to another
            continue
        seen.add(id(tensor))
        begin, end = end, end + math.prod(tensor.shape) * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    print(sum(parameter.numel() for parameter in model.parameters()))


if __name__ == "__main__":
    main()
