"""Policies: from the blocks of a CPU run to those that a GPU run would have.

Data flows ``workload`` -> ``policy`` (composition) over the policies in the files beside it, one concept per
file. Everything that a package needs to provide its own policy (docs/policies.md) is exported here.
"""

from xmem.orchestration.policy import Policy
from xmem.run.operators import OperatorIndex
from xmem.run.recorded import Context, Recorded
from xmem.run.target import RunSettings, Target
from xmem.run.workload import Workload

__all__ = ["Context", "OperatorIndex", "Policy", "Recorded", "RunSettings", "Target", "Workload"]
