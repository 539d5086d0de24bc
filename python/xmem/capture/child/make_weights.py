"""Make the weights of a model from its config: ``make_weights.py FOLDER FILE [DTYPE]``.

It runs in the user's own interpreter, whose transformers or diffusers knows which tensors the model has. The
file of weights is one of holes: it has the right length, takes no room on the disk, and reads as zeros. That
is all that a run needs which computes nothing. DTYPE is that of tensors where the config does not say it.
What is wrong goes to stderr as one line.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# safetensors/torch.py, _TYPES
_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


def main() -> None:
    """Make the weights of the model in the folder."""
    folder, file = Path(sys.argv[1]), Path(sys.argv[2])
    torch = _installed("torch")
    otherwise = getattr(torch, sys.argv[3]) if len(sys.argv) > 3 else torch.float32
    # configuration_utils.py of diffusers, `ConfigMixin.to_json_string`
    of_diffusers = '"_class_name"' in (folder / "config.json").read_text(encoding="utf-8", errors="replace")
    model = (_model_of_diffusers if of_diffusers else _model_of_transformers)(folder, otherwise)
    print(_write_holes(file, model.state_dict(keep_vars=True)))


def _installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        sys.exit(f"{error.name} is not installed where the program runs; install it there")


def _model_of_transformers(folder: Path, otherwise: torch.dtype) -> Any:
    torch, transformers = _installed("torch"), _installed("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
    except Exception as error:  # whatever its config makes of the file
        sys.exit(
            f"transformers {transformers.__version__} does not read its config ({str(error).splitlines()[0]})"
        )
    if getattr(config, "quantization_config", None):
        sys.exit("it is quantized, and its tensors are not known from its config; download its weights")
    names = config.architectures or []
    model_class = getattr(transformers, names[0], None) if names else None
    if model_class is None:
        what = f"no model {names[0]}" if names else "no model for a config without architectures"
        sys.exit(f"transformers {transformers.__version__} has {what}; download its weights")
    dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or otherwise
    torch.set_default_dtype(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    with torch.device("meta"):
        return model_class(config)


def _model_of_diffusers(folder: Path, otherwise: torch.dtype) -> Any:
    torch, diffusers = _installed("torch"), _installed("diffusers")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model_class = getattr(diffusers, config["_class_name"], None)
    if model_class is None:
        name = config["_class_name"]
        sys.exit(f"diffusers {diffusers.__version__} has no model {name}; download its weights")
    torch.set_default_dtype(otherwise)
    with torch.device("meta"):
        return model_class.from_config(config)


def _write_holes(file: Path, state: dict[str, torch.Tensor]) -> int:
    """Write the file, and return the bytes of the tensors in it."""
    tensors = {}
    seen: set[int] = set()
    for name, tensor in state.items():
        if id(tensor) not in seen:  # tied to another
            seen.add(id(tensor))
            tensors[name] = tensor
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    # In the order of files that were saved, since they are loaded in it: large types first, then by name
    # (safetensors/src/tensor.rs, `prepare`).
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        begin, end = end, end + math.prod(tensor.shape) * tensor.element_size()
        kind = _NAMES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + end)
    return end


if __name__ == "__main__":
    main()
