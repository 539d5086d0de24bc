"""Another optimizer: its state and its temporaries take the place of the recorded ones."""

from __future__ import annotations

import numpy as np

from xmem.errors import ConfigError
from xmem.orchestration.optimizer.optimizer_steps import ALGORITHMS, Step, construct_state
from xmem.orchestration.tape import Tape
from xmem.records import dataclass
from xmem.trace.attribution import Category, Phase
from xmem.trace.blocks import NEVER
from xmem.whatif.changed_run import ChangedRun


@dataclass(frozen=True)
class Optimizer:
    """``optimizer=NAME[+OPTION...][:IMPLEMENTATION]``.

    All allocations of the recorded optimizer are replaced by those of the other one, for the parameters that
    have gradients at each step, group by group: state for those that have none yet, then temporaries, in the
    order of `torch.optim` (``optimizer_steps``). Parameters and gradients stay.
    """

    text: str
    name: str
    options: frozenset[str]
    implementation: str

    def __call__(self, run: ChangedRun) -> ChangedRun:
        """Replace the optimizer."""
        algorithm = ALGORITHMS[self.name]
        steps = run.steps
        parameters = [run.parameters(step) for step in steps]
        workload = run.workload
        in_step = (workload.phase == Phase.OPTIMIZER_STEP) & (workload.category != Category.GRADIENT)
        run = run.with_workload(workload.select(~in_step & (workload.category != Category.OPTIMIZER_STATE)))
        known: set[str] = set()
        if algorithm.state_at_construction:
            tape = Tape()
            every = {parameter.name: parameter for each in parameters for parameter in each}
            construct_state(tape, every.values(), self.implementation)
            known = set(every)
            run = _insert(run, tape, _after_the_model(run), -1)
        tapes = []
        for each in parameters:
            tape = Tape()
            for group in sorted({parameter.group for parameter in each}):
                own = [parameter for parameter in each if parameter.group == group]
                fresh = frozenset(parameter.name for parameter in own) - known
                algorithm.step(tape, Step(own, fresh, self.implementation, self.options, run.device))
                known |= fresh
            tapes.append(tape)
        for index, tape in enumerate(tapes):
            run = _insert(run, tape, run.steps[index].begin_ns, index)
        return run


def parse_optimizer(text: str, value: str) -> Optimizer:
    """Read ``adamw``, ``sgd+momentum:fused``.

    Raises:
        ConfigError: There is no such optimizer, option or implementation.
    """
    named, _, implementation = value.partition(":")
    name, *options = named.lower().split("+")
    algorithm = ALGORITHMS.get(name)
    if algorithm is None:
        raise ConfigError(
            f"unknown optimizer {name!r} in --what-if {text}", f"use one of {', '.join(ALGORITHMS)}"
        )
    for option in options:
        if option not in algorithm.options:
            known = ", ".join(algorithm.options)
            hint = f"use one of {known}" if known else f"{name} takes no options"
            raise ConfigError(f"unknown option {option!r} of {name} in --what-if {text}", hint)
    if "nesterov" in options and "momentum" not in options:
        raise ConfigError(f"--what-if {text} sets nesterov without momentum", "use sgd+momentum+nesterov")
    implementation = implementation or algorithm.implementations[0]
    if implementation not in algorithm.implementations:
        known = ", ".join(algorithm.implementations)
        raise ConfigError(
            f"unknown implementation {implementation!r} of {name} in --what-if {text}", f"use one of {known}"
        )
    return Optimizer(text, name, frozenset(options), implementation)


def _after_the_model(run: ChangedRun) -> int:
    """Return the time right after the last parameter or buffer that exists before the first forward pass."""
    workload = run.workload
    model = np.isin(workload.category, (Category.PARAMETER, Category.BUFFER))
    made = workload.alloc_ns[model & (workload.alloc_ns < run.forwards[0])]
    return int(made.max()) + 1 if len(made) else run.forwards[0]


def _insert(run: ChangedRun, tape: Tape, at_ns: int, iteration: int) -> ChangedRun:
    """Play a tape at a time; the run waits for it."""
    if not tape.size_bytes:
        return run
    run = run.with_room(at_ns, tape.events)
    made = tape.allocations()
    return run.with_blocks(
        size_bytes=made.size_bytes,
        alloc_ns=at_ns + made.born,
        free_ns=np.where(made.died < 0, NEVER, at_ns + made.died),
        category=np.where(made.kept, Category.OPTIMIZER_STATE, Category.TEMPORARY),
        phase=np.full(len(made.kept), Phase.OPTIMIZER_STEP if iteration >= 0 else Phase.OTHER),
        iteration=np.full(len(made.kept), iteration),
    )
