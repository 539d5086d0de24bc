"""Policies: from the blocks of a CPU run to those that a GPU run would have.

Data flows ``workload`` -> ``policy`` (composition) over the policies in the files beside it, one concept a
file. What a package needs to bring its own policy (docs/policies.md) is exported here.
"""

from xmem.orchestration.operators import OperatorIndex
from xmem.orchestration.policy import Context, Policy, Recorded
from xmem.orchestration.target import RunSettings, Target
from xmem.orchestration.workload import Workload

__all__ = ["Context", "OperatorIndex", "Policy", "Recorded", "RunSettings", "Target", "Workload"]
