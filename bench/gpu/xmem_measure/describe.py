"""The measured GPU as a description that the product reads (docs/devices.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_ARCHITECTURES = {7: "Volta", 8: "Ampere", 9: "Hopper", 10: "Blackwell", 11: "Blackwell", 12: "Blackwell"}
_ARCHITECTURES_OF = {(7, 5): "Turing", (8, 9): "Ada Lovelace"}
# Said by other keys, or not of the GPU but of the machine.
_LEFT_OUT = {
    "MultiProcessorCount",
    "ComputeCapabilityMajor",
    "ComputeCapabilityMinor",
    "PciBusId",
    "PciDeviceId",
    "PciDomainId",
}


def describe(record: Mapping[str, Any]) -> str:
    """A description from the record of a ``device`` run on a GPU."""
    properties, memory = record["properties"], record["device_memory"]
    capability = (properties["major"], properties["minor"])
    # What the process holds beside its segments, after a first training step.
    context = memory["kernels_bytes"] - record["reserved_bytes"]
    source = f"bench/gpu, torch {record['environment']['torch']}, driver {record['driver'] or 'unknown'}"
    fields: dict[str, Any] = {
        "full_name": properties["name"],
        "vendor": "NVIDIA",
        "architecture": _ARCHITECTURES_OF.get(capability, _ARCHITECTURES.get(capability[0], "")),
        "compute_capability": list(capability),
        "multiprocessors": properties["multi_processor_count"],
        "total_memory_bytes": properties["total_memory"],
        "total_memory_basis": "measured",
        "total_memory_source": source,
    }
    if record["nvml_total_bytes"]:
        fields["nvml_total_memory_bytes"] = record["nvml_total_bytes"]
    if memory["source"] == "nvml":
        fields |= {
            "context_bytes": context,
            "loaded_kernels_bytes": max(0, context - memory["context_bytes"]),
            "context_basis": "measured",
        }
    attributes = {
        name: value for name, value in record.get("attributes", {}).items() if name not in _LEFT_OUT
    }
    if attributes:
        fields["attributes_source"] = f"{source}: cudaDeviceGetAttribute"
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    if attributes:
        lines += ["", "[attributes.measured]", *(f"{name} = {value}" for name, value in attributes.items())]
    return "\n".join(lines) + "\n"
