"""Advice on making a job take less memory; each remedy is replayed before it is given.

    analysis = xmem.analyze("trace.json.gz", gpu="rtx-3060")
    for advice in advise(analysis).advice:
        print(advice.saved_bytes, advice.where, advice.change)

Candidates come from what is alive at the peak (``candidates``); each one is a what-if or an allocator setting
that is applied to the recorded run and replayed (``trial``).
"""

from xmem.advice.remedies import Advice, Advised, Combination
from xmem.advice.search import PAGE_BUDGET_S, advise

__all__ = ["PAGE_BUDGET_S", "Advice", "Advised", "Combination", "advise"]
