"""The side of a capture that runs inside the user's process: standard library and torch only.

Read in this order: ``system`` (what operating systems lack), ``masking`` (what is never written),
``settings`` (what the parent asks), ``failures`` and ``progress`` (what the parent is
told of a process), ``following_imports``, ``patches``, ``device_memory`` (which tensors stand for GPU
memory), ``spans``, ``tensor_names``, ``flat_memory``, ``script_settings``, ``profiler``, ``optimizers``,
``backward`` and ``iterations`` (what is recorded and counted), ``extent`` (how far), ``data_lengths``,
``run_notes``, ``trace_writer``, ``function_mode``, ``allocator_history``, ``pool_calls``,
``allocator_record``, ``unseen_memory``, ``card_record``, ``peers`` and ``values`` (what the phantom GPU
adds), ``absent`` (ranks that do not run), ``session`` (when it begins and ends) and ``modules``; then either
``streams``, ``redirect``, ``cuda_answers``, ``autocast``, ``alignments``, ``torchvision_names``,
``slow_dtypes``, ``fake`` and ``world`` (how the CPU stands for the GPU), or ``architectures``, ``observe``,
``initialisation``, ``host_work``, ``autotuning``, ``servers``, ``symmetric_memory`` and
``phantom_distributed`` (how a script runs on the phantom GPU). ``block`` records a part of a process that
runs anyway (``xmem.record``), in place of a session. A module imports only from those before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .settings import Settings

if TYPE_CHECKING:
    from .patches import Patches
    from .session import Session
    from .watching.modules import RootObserver

_OLDEST_TORCH = (2, 5)
# On the CPU: since then, NCCL's work lets no stream hold memory, and DTensors ask no real GPU for streams.
_OLDEST_FOR_RANKS = (2, 10)


def install() -> None:
    """Set everything up; called once, at the end of ``import torch``."""
    import torch

    from .records import failures

    settings = Settings.from_environment()
    failures.follow_threads_and_processes()
    settings.note_torch(torch.__version__)
    major, minor = torch.__version__.split(".")[:2]
    if (int(major), int(minor)) < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        settings.report(
            state="failed",
            message=f"the script's torch is {torch.__version__}; capturing needs torch {oldest} or newer",
        )
        return
    if (
        settings.mode == "fake"
        and settings.world is not None
        and (int(major), int(minor)) < _OLDEST_FOR_RANKS
    ):
        oldest = ".".join(map(str, _OLDEST_FOR_RANKS))
        settings.report(
            state="failed",
            message=f"the script's torch is {torch.__version__}; in mode fake, ranks run with torch {oldest} "
            "or newer: use --mode phantom, with the CUDA build that xmem-fast phantom-env installs",
        )
        raise SystemExit(1)
    if settings.mode == "phantom" and (message := _no_code_for_the_gpu()):
        settings.report(state="failed", message=message)
        raise SystemExit(1)
    try:
        _install(settings)
    except Exception as error:
        settings.report(
            state="failed",
            message=f"the capture fails with torch {torch.__version__} ({error!r}); please report this",
        )
        raise


def _no_code_for_the_gpu() -> str | None:
    from .on_phantom.architectures import refusal

    return refusal()


# Overrides of operators last as long as these objects.
_kept: list[object] = []


def _install(settings: Settings) -> None:
    (_install_phantom if settings.mode == "phantom" else _install_on_cpu)(settings)


def _install_on_cpu(settings: Settings) -> None:
    # Only now: these need a torch that is known to be new enough.
    from .on_cpu import cuda_answers, redirect, torchvision_names
    from .on_cpu.alignments import Alignments, flatten_recurrent_weights
    from .on_cpu.autocast import CudaAutocast
    from .on_cpu.compilation import compile_eagerly
    from .on_cpu.slow_dtypes import SlowDtypes
    from .patches import Patches
    from .session import Session
    from .watching.backward import follow_graphs_of_gradients

    session, patches = Session(settings), Patches()
    follow_graphs_of_gradients(lambda: session.doubt("graphs_of_gradients"))
    cuda_answers.install(session)
    autocast, alignments = CudaAutocast(), Alignments(session)
    autocast.install()
    alignments.install(patches)
    flatten_recurrent_weights(session)
    compile_eagerly(session)
    torchvision_names.follow_import(session.assume)
    _kept.extend([autocast, alignments])
    computes = settings.mode == "real"
    _follow_training(session, patches, SlowDtypes(session, session.assume) if computes else session)
    if settings.mode == "fake":
        redirect.install(session, patches, on_start=_compute_nothing(session, settings))
    else:
        redirect.install(session, patches)


def _compute_nothing(session: Session, settings: Settings) -> Callable[[], None]:
    from .on_cpu.fake.values import FakeValues
    from .on_phantom.initialisation import skip_initialisation
    from .records import failures
    from .values.collectives import RunningPeers
    from .watching.flat_memory import name_flat_memory

    session.values = values = FakeValues(
        settings.values,
        settings.known_elements,
        session.spans,
        session.assume,
        RunningPeers.of(settings),
        settings.imbalance,
    )
    failures.tell_reads(values.before)
    if not settings.keep_init:
        skip_initialisation(values.not_written)
    if settings.world is not None:
        from .absent import AbsentPeers
        from .on_cpu import world

        session.absent = AbsentPeers(settings, session.assume)
        world.install(session.absent, session.fail)
    name_flat_memory(session.names)
    values.follow_thread()
    return values.follow_thread


def _install_phantom(settings: Settings) -> None:
    from .on_phantom import observe, phantom_distributed
    from .on_phantom.autotuning import take_first_choices
    from .on_phantom.cute_dsl import serve_cute_dsl
    from .on_phantom.host_work import skip_host_work
    from .on_phantom.initialisation import skip_initialisation
    from .patches import Patches
    from .records import failures
    from .records.allocator_record import AllocatorRecord
    from .session import Session
    from .values import Values
    from .watching.flat_memory import name_flat_memory
    from .watching.graph_warm_ups import GraphWarmUps

    session, patches = Session(settings), Patches()
    session.graph_warm_ups = GraphWarmUps(session.graph_replayed)
    session.allocator = AllocatorRecord(session.assume, behind=settings.behind)
    session.allocator.install()
    session.values = Values(settings, session.spans, session.assume)
    failures.tell_reads(session.values.before)
    if not settings.keep_init:
        skip_initialisation(session.values.not_written, session.values.unknown)
        skip_host_work(session.assume)
    if settings.world is not None:
        from .absent import AbsentPeers

        session.absent = AbsentPeers(settings, session.assume)
    phantom_distributed.install(session.iterations.rounds, session.absent, behind=settings.behind)
    if session.absent is not None:
        session.absent.install()
    take_first_choices(session.assume, has_compiled=settings.has_compiled)
    serve_cute_dsl()
    name_flat_memory(session.names)
    _follow_training(session, patches, session)
    observe.install(session, session.values, patches)


def _follow_training(session: Session, patches: Patches, observer: RootObserver) -> None:
    from .records import profiler
    from .watching import optimizers
    from .watching.backward import follow_backward
    from .watching.modules import ModuleCalls

    _kept.append(session)
    session.names.search_modules = True
    profiler.switch_off_script_profiling(session.assume, patches)
    profiler.break_spans_at_annotations(session.spans, patches)
    optimizers.install(session)
    ModuleCalls(session.spans, observer).install(patches)
    follow_backward(session.backward_ended)
