"""Measurements on real GPUs, made by ``bench/gpu``, and the accuracy of estimates against them."""

from xmem.validation.loading import DEFAULT_FOLDER, load_measurements
from xmem.validation.measurements import (
    Convolution,
    DeviceFacts,
    DeviceMemory,
    IterationUsage,
    Launches,
    LeastMemory,
    LibraryAnswers,
    MeasuredWorkspaces,
    Measurement,
    Network,
    OperatorRequests,
    OperatorTable,
    ProgramPeak,
    Recorded,
    RecurrentNetworks,
    Sample,
    SampleTable,
    TrainingPeak,
)
from xmem.validation.recordings import replay_history

__all__ = [
    "DEFAULT_FOLDER",
    "Convolution",
    "DeviceFacts",
    "DeviceMemory",
    "IterationUsage",
    "Launches",
    "LeastMemory",
    "LibraryAnswers",
    "MeasuredWorkspaces",
    "Measurement",
    "Network",
    "OperatorRequests",
    "OperatorTable",
    "ProgramPeak",
    "Recorded",
    "RecurrentNetworks",
    "Sample",
    "SampleTable",
    "TrainingPeak",
    "load_measurements",
    "replay_history",
]
