"""Candidate remedies for the memory alive at the peak, most bytes at stake first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from xmem.advice.script_lines import Lines
from xmem.advice.trial import Trial
from xmem.errors import XmemError
from xmem.estimation.analysis import Analysis
from xmem.orchestration.optimizer.optimizer_steps import ALGORITHMS
from xmem.records import dataclass
from xmem.text.source_lines import user_line
from xmem.text.units import format_bytes
from xmem.trace.attribution import Category, Phase
from xmem.whatif import ChangedRun, parse_whatif
from xmem.whatif.backward_nodes import BackwardNodes
from xmem.whatif.chunked_loss import losses
from xmem.whatif.module_calls import are_marked
from xmem.whatif.release import Kept, kept_beyond_use

_MOST_MODULES = 8
_MOST_LINES = 6
_CHUNKS = 8
_WORTHWHILE = 0.002  # share of the peak; remedies with less at stake are not tried
_IMPLEMENTATIONS = {
    "fused": ("fused=True", "none: one kernel for all parameters, which rounds differently from foreach"),
    "for-loop": ("foreach=False", "a slower step: every parameter gets its own kernels"),
}


@dataclass(frozen=True)
class Candidate:
    """A change of the script that may help.

    Attributes:
        remedy: Name of the what-if.
        what_if: The what-if as the command line spells it.
        stake_bytes: Memory at the peak that it concerns.
        where: The line to change, or a substitute for it.
        change: The change to make.
        cost: Cost of the change.
    """

    remedy: str
    what_if: str
    stake_bytes: int
    where: str | None
    change: str
    cost: str


def candidates(analysis: Analysis, trial: Trial) -> list[Candidate]:
    """Return the changes of the script worth a replay, most bytes at stake first."""
    peak = _AtPeak(analysis, trial)
    found = [
        *peak.modules(),
        *peak.kept(),
        *peak.gradients(),
        *peak.optimizer(),
        *peak.loss(),
        *peak.precision(),
    ]
    least_bytes = _WORTHWHILE * analysis.replay.peak_allocated.bytes
    worthwhile = [each for each in found if each.stake_bytes >= least_bytes]
    return sorted(worthwhile, key=lambda each: -each.stake_bytes)


class _AtPeak:
    """Blocks alive when allocated or reserved memory is at its peak."""

    def __init__(self, analysis: Analysis, trial: Trial) -> None:
        self.run = trial.start
        self.trial = trial
        self.workload = analysis.stages.workload
        self.lines = Lines(self.run)
        requests = {analysis.replay.peak_allocated.request, analysis.replay.peak_reserved.request}
        alive = [analysis.holders.alive_at(request) for request in requests]
        self.times_ns = [int(analysis.stages.requests.time_ns[request]) for request in requests]
        self.rows: NDArray[np.intp] = np.unique(np.concatenate(alive))
        self.category_peaks = analysis.estimate.breakdown.category_peaks
        self.optimizers = analysis.stages.trace.notes.optimizers

    def modules(self) -> Iterator[Candidate]:
        """Yield checkpointing of the modules whose activations are alive, siblings by one pattern."""
        run, rows = self.run, self.rows
        category, phase = self.workload.category[rows], self.workload.phase[rows]
        saved = rows[(phase == Phase.FORWARD) & np.isin(category, (Category.ACTIVATION, Category.TEMPORARY))]
        saved = saved[self.workload.module[saved] >= 0]
        called, numbered = self.lines.calls_of_modules, not are_marked(run.recorded)
        paths = run.recorded.attribution.modules
        bytes_in = np.bincount(self.workload.module[saved], self.workload.size_bytes[saved], len(paths))
        stakes: defaultdict[str, int] = defaultdict(int)
        for module in np.flatnonzero(bytes_in).tolist():
            parts = paths[module].split(".")
            within = {
                _pattern(".".join(parts[:depth]), numbered=numbered) for depth in range(2, len(parts) + 1)
            }
            for pattern in within:
                stakes[pattern] += int(bytes_in[module])
        of_pattern: dict[str, str] = {}
        for path in called:
            of_pattern.setdefault(_pattern(path, numbered=numbered), path)
        known = [(bytes_, pattern) for pattern, bytes_ in stakes.items() if pattern in of_pattern]
        for bytes_, pattern in sorted(known, reverse=True)[:_MOST_MODULES]:
            count = sum(_pattern(path, numbered=numbered) == pattern for path in called)
            first = of_pattern[pattern]
            line = self.lines.of_call(first)
            beside = None if line is not None else self.lines.beside_call(first)
            yield Candidate(
                remedy="checkpoint",
                what_if=f"checkpoint={pattern}",
                stake_bytes=bytes_,
                where=line or (beside[1] if beside is not None else pattern),
                change=("" if beside is None else f"here or {beside[0]}, ")
                + self._checkpointed(first, pattern),
                cost=f"{_count(count, 'forward pass', 'forward passes')} run twice in each iteration",
            )

    def _checkpointed(self, path: str, pattern: str) -> str:
        """Explain how to checkpoint the modules of a pattern, one of them at this path."""
        name = path.rpartition(".")[2]
        if not name.isidentifier():
            name = "module"
        if self.lines.is_of_package(path):
            return (
                f"a package calls {pattern}: use the package's own switch (in transformers, "
                f"model.gradient_checkpointing_enable()), or set {name}.forward = functools.partial("
                f"torch.utils.checkpoint.checkpoint, {name}.forward, use_reentrant=False)"
            )
        return f"call {pattern} as torch.utils.checkpoint.checkpoint({name}, x, use_reentrant=False)"

    def kept(self) -> Iterator[Candidate]:
        """Yield the release of tensors that a name keeps beyond their last use."""
        kept = kept_beyond_use(self.run)
        names = self.run.recorded.attribution.lines
        stakes: defaultdict[str, int] = defaultdict(int)
        before_backward: dict[str, bool] = {}
        lines = self.workload.source_line[kept.rows]
        alive = self._useless_at_peak(kept) & (lines >= 0)
        for row, for_loss in zip(kept.rows[alive].tolist(), kept.for_loss[alive].tolist(), strict=True):
            line = user_line(names[self.workload.source_line[row]])
            if line:
                stakes[line] += int(self.workload.size_bytes[row])
                before_backward[line] = before_backward.get(line, True) and for_loss
        for line, bytes_ in sorted(stakes.items(), key=lambda item: -item[1])[:_MOST_LINES]:
            place = "once the loss is computed" if before_backward[line] else "after loss.backward()"
            yield Candidate(
                remedy="release",
                what_if=f"release={line}",
                stake_bytes=bytes_,
                where=line,
                change=f"del the variable that keeps this tensor alive ({format_bytes(bytes_)}) {place}",
                cost="none",
            )

    def _useless_at_peak(self, kept: Kept) -> NDArray[np.bool_]:
        """Return for each kept block whether it is alive at a peak after its last use."""
        free_ns = self.workload.free_ns[kept.rows]
        found = np.zeros(len(free_ns), np.bool_)
        for time_ns in self.times_ns:
            found |= (kept.last_use_ns <= time_ns) & (time_ns < free_ns)
        return found

    def gradients(self) -> Iterator[Candidate]:
        """Yield changes for gradients that are cleared late or never freed."""
        bytes_ = self.category_peaks.get(
            Category.GRADIENT.label, 0
        )  # freed or not, their place may be cached
        where = self.lines.of_annotation("Optimizer.zero_grad#") or self.lines.of_annotation(
            "Optimizer.step#"
        )
        yield Candidate(
            remedy="zero_grad",
            what_if="zero_grad=after_step",
            stake_bytes=bytes_,
            where=where,
            change="move optimizer.zero_grad() to right after optimizer.step()",
            cost="none",
        )
        yield Candidate(
            remedy="set_to_none",
            what_if="set_to_none=true",
            stake_bytes=bytes_,
            where=where,
            change="optimizer.zero_grad(set_to_none=True)",
            cost="none",
        )

    def optimizer(self) -> Iterator[Candidate]:
        """Yield other implementations of the same optimizer, by the temporaries of a step."""
        if len(self.optimizers) != 1:
            return
        workload = self.workload
        temporary = (workload.phase == Phase.OPTIMIZER_STEP) & (workload.category == Category.TEMPORARY)
        steps = max(len(np.unique(workload.iteration[temporary])), 1)
        bytes_ = int(workload.size_bytes[temporary].sum()) // steps
        recorded = self.optimizers[0]
        now = "fused" if recorded.fused else "foreach" if recorded.foreach else "for-loop"
        name = self._as_recorded(recorded.name.lower(), now)
        if name is None:
            return
        for implementation, (keyword, cost) in _IMPLEMENTATIONS.items():
            if implementation != now and implementation in ALGORITHMS[name.partition("+")[0]].implementations:
                yield Candidate(
                    remedy="optimizer",
                    what_if=f"optimizer={name}:{implementation}",
                    stake_bytes=bytes_,
                    where=self.lines.of_annotation("Optimizer.step#"),
                    change=f"build torch.optim.{recorded.name}(..., {keyword})",
                    cost=cost,
                )

    def _as_recorded(self, name: str, implementation: str) -> str | None:
        """Return the optimizer with its recorded options, as far as they affect memory."""
        algorithm = ALGORITHMS.get(name)
        if algorithm is None or implementation not in algorithm.implementations:
            return None
        as_it_is = self.trial.outcome(self.trial.requests(self.run))
        for options in ([], *([option] for option in algorithm.options), list(algorithm.options)):
            spelled = "+".join([name, *options])
            try:
                run = self.trial.changed([parse_whatif(f"optimizer={spelled}:{implementation}")])
            except XmemError:
                return None
            if _state_bytes(run) != _state_bytes(self.run):
                continue
            outcome = self.trial.outcome(self.trial.requests(run))
            if _near(outcome.peak_allocated_bytes, as_it_is.peak_allocated_bytes):
                return spelled
        return None

    def loss(self) -> Iterator[Candidate]:
        """Yield the cross entropy in chunks."""
        workload = self.workload
        alloc_ns = workload.alloc_ns[self.rows]
        stake_bytes, line = 0, -1
        for loss in losses(self._nodes):
            for span in (loss.forward, loss.backward):
                inside = self.rows[(alloc_ns >= span.begin_ns) & (alloc_ns < span.end_ns)]
                stake_bytes += int(workload.size_bytes[inside].sum())
            begins, ends = loss.forward.begin_ns, loss.forward.end_ns
            made = np.flatnonzero((workload.alloc_ns >= begins) & (workload.alloc_ns < ends))
            if len(made):  # the loss is made last; before it come the logits
                line = int(workload.source_line[made[np.argmax(workload.alloc_ns[made])]])
        if not stake_bytes:
            return
        names = self.run.recorded.attribution.lines
        yield Candidate(
            remedy="chunk_loss",
            what_if=f"chunk_loss={_CHUNKS}",
            stake_bytes=stake_bytes,
            where=(user_line(names[line]) or None) if line >= 0 else None,
            change=f"split the input of the last layer and the targets with .chunk({_CHUNKS}, dim=0); add up "
            "checkpoint(lambda x, y: cross_entropy(head(x), y, reduction='sum'), x, y, use_reentrant=False)",
            cost="the last layer's forward pass runs twice in each iteration",
        )

    @cached_property
    def _nodes(self) -> BackwardNodes:
        return BackwardNodes.of(self.run)

    def precision(self) -> Iterator[Candidate]:
        """Yield forward pass and loss in half precision."""
        activation = self.rows[
            np.isin(self.workload.category[self.rows], (Category.ACTIVATION, Category.TEMPORARY))
        ]
        root = min(self.lines.calls_of_modules, key=lambda path: path.count("."), default=None)
        yield Candidate(
            remedy="precision",
            what_if="precision=bf16-autocast",
            stake_bytes=int(self.workload.size_bytes[activation].sum()) // 2,
            where=None if root is None else self._first_line_after(root) or root,
            change='compute model and loss under torch.autocast("cuda", torch.bfloat16)',
            cost="bfloat16's precision in matrix products",
        )

    def _first_line_after(self, module: str) -> str | None:
        """Return the line that continues with the output of a module: that of the loss."""
        workload, attribution = self.workload, self.run.recorded.attribution
        events, call = self.run.recorded.trace.events, self.lines.calls_of_modules[module]
        later = (workload.phase == Phase.FORWARD) & (workload.alloc_ns >= events.end_ns[call])
        rows = np.flatnonzero(later & (workload.module < 0) & (workload.source_line >= 0))
        if not len(rows):
            return None
        first = rows[np.argmin(workload.alloc_ns[rows])]
        return user_line(attribution.lines[workload.source_line[first]]) or None


@cache
def _pattern(path: str, *, numbered: bool) -> str:
    """Replace a module's position among its siblings: ``GPT.blocks.3.mlp`` -> ``GPT.blocks.*.mlp``.

    Args:
        path: Path of a module.
        numbered: Whether parts are classes with a number (``Block_3``), as the profiler writes them.
    """
    place = r"_\d+$" if numbered else r"^\d+$"
    return ".".join(re.sub(place, "_*" if numbered else "*", part) for part in path.split("."))


def _state_bytes(run: ChangedRun) -> int:
    state = run.workload.category == Category.OPTIMIZER_STATE
    return int(run.workload.size_bytes[state].sum())


def _near(bytes_: int, others: int) -> bool:
    return abs(bytes_ - others) <= 0.001 * others


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
