"""Writes python/xmem/data/convolution_shares.toml: the workspace of a convolution's first plan as a share of
the bytes that it reads and writes, by architecture, as several versions of cuDNN say it for common layers.

    python tools/convolution_shares.py LIBCUDNN [LIBCUDNN ...] > python/xmem/data/convolution_shares.toml
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import product

import numpy as np

from xmem.cudnn.libraries import library_at
from xmem.cudnn.planner import Planner, PlannerSettings, sizes_tried
from xmem.cudnn.problems import ConvolutionProblem, Operation
from xmem.cudnn.shares import kind_of, tensor_bytes
from xmem.devices.gpus import Device, devices

BATCH = 64
# Channels, filters, height and width, kernel, stride, groups: of VGG, ResNet, RegNet, MobileNet, ConvNeXt.
LAYERS = (
    (3, 64, 224, 7, 2, 1),
    (3, 64, 86, 3, 1, 1),
    (3, 96, 224, 4, 4, 1),
    (64, 64, 56, 3, 1, 1),
    (64, 64, 86, 3, 1, 1),
    (64, 128, 56, 3, 2, 1),
    (128, 128, 28, 3, 1, 1),
    (256, 256, 14, 3, 1, 1),
    (512, 512, 7, 3, 1, 1),
    (64, 256, 56, 1, 1, 1),
    (256, 64, 56, 1, 1, 1),
    (256, 512, 56, 1, 2, 1),
    (1024, 256, 14, 1, 1, 1),
    (16, 96, 43, 1, 1, 1),
    (96, 24, 22, 1, 1, 1),
    (64, 64, 28, 3, 1, 8),
    (128, 128, 14, 3, 1, 16),
    (48, 48, 22, 3, 1, 6),
)


def problems() -> list[ConvolutionProblem]:
    """Every layer, operation, dtype and layout."""
    found = []
    for layer, operation, dtype, last in product(LAYERS, Operation, ("float32", "float16"), (False, True)):
        channels, filters, size, kernel, stride, groups = layer
        padding = 0 if kernel == stride else kernel // 2
        out = (size + 2 * padding - kernel) // stride + 1
        x, w = (BATCH, channels, size, size), (filters, channels // groups, kernel, kernel)
        y = (BATCH, filters, out, out)
        found.append(
            ConvolutionProblem(
                operation, dtype, x, w, y, (stride,) * 2, (padding,) * 2, (1, 1), channels_last=last
            )
        )
    return found


def one_of_each_architecture() -> dict[str, Device]:
    """By compute capability."""
    found: dict[str, Device] = {}
    for device in devices():
        if device.attributes and device.compute_capability:
            found.setdefault(".".join(map(str, device.compute_capability)), device)
    return dict(sorted(found.items(), key=lambda pair: pair[1].compute_capability or (0, 0)))


def main(*paths: str) -> None:
    """Ask all libraries about all architectures."""
    versions = []
    shares: dict[str, dict[str, list[float]]] = {}
    for capability, device in one_of_each_architecture().items():
        of_kind = shares.setdefault(capability, defaultdict(list))
        for path in paths:
            planner = Planner.for_device(library_at(path), device)
            versions.append(planner.version())
            for problem, plans in planner.plans(problems()).items():
                tried = sizes_tried(plans, problem.dtype, PlannerSettings())
                if tried:
                    of_kind[kind_of(problem)].append(tried[0] / tensor_bytes(problem))
    print(f"# cuDNN {', '.join(dict.fromkeys(versions))}; written by tools/convolution_shares.py")
    print("# Share of the bytes of input, filter and output that the first plan needs: least, median, most.")
    for capability, of_kind in shares.items():
        if of_kind:
            print(f'\n["{capability}"]')
        for kind, seen in sorted(of_kind.items()):
            least, median, most = (round(float(value), 3) for value in np.quantile(seen, (0, 0.5, 1)))
            print(f'"{kind}" = [{least}, {median}, {most}]')


if __name__ == "__main__":
    main(*sys.argv[1:])
