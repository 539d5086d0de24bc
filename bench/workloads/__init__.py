"""The training jobs that measurements and published figures are about, as functions of a device.

``Job`` says which one, ``prepare`` builds it on the host, ``train`` runs it. The loops are those of the
public experiments of the xMem paper: which name is bound when decides how long a tensor lives, so nothing
here may be rearranged.
"""

from workloads.cnn import CNNS
from workloads.inference import CLASSIFIERS, Inference, prepare_inference
from workloads.job import PRECISIONS, Job, Scale
from workloads.training import Prepared, prepare, train
from workloads.transformer import TRANSFORMERS

__all__ = [
    "CLASSIFIERS",
    "CNNS",
    "PRECISIONS",
    "TRANSFORMERS",
    "Inference",
    "Job",
    "Prepared",
    "Scale",
    "prepare",
    "prepare_inference",
    "train",
]
