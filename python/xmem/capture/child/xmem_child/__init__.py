"""The side of a capture that runs inside the user's process: standard library and torch only.

Read in this order: ``settings`` (what the parent asks), ``patches``, ``device_memory`` (which tensors stand
for GPU memory), ``spans``, ``tensor_names``, ``script_settings``, ``profiler`` and ``optimizers`` (what is
recorded), ``run_notes``, ``trace_writer``, ``function_mode``, ``allocator_history``, ``pool_calls``,
``allocator_record``, ``unseen_memory`` and ``values`` (what the phantom GPU adds), ``session`` (when it begins and ends) and ``modules``; then either ``redirect``,
``cuda_answers``, ``autocast`` and ``alignments`` (how the CPU stands for the GPU), or ``observe``,
``initialisation`` and ``phantom_distributed`` (how a script runs on the phantom GPU). ``block`` records a
part of a process that runs anyway (``xmem.record``), in place of a session. A module imports only from those
before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .settings import Settings

if TYPE_CHECKING:
    from .patches import Patches
    from .session import Session

_OLDEST_TORCH = (2, 6)


def install() -> None:
    """Set everything up; called once, at the end of ``import torch``."""
    import torch

    settings = Settings.from_environment()
    settings.note_torch(torch.__version__)
    major, minor = torch.__version__.split(".")[:2]
    if (int(major), int(minor)) < _OLDEST_TORCH:
        settings.report(
            state="failed",
            message=f"the script's torch is {torch.__version__}; capturing needs torch 2.6 or newer",
        )
        return
    try:
        _install(settings)
    except Exception as error:
        settings.report(
            state="failed",
            message=f"the capture fails with torch {torch.__version__} ({error!r}); please report this",
        )
        raise


# Overrides of operators last as long as these objects.
_kept: list[object] = []


def _install(settings: Settings) -> None:
    (_install_phantom if settings.mode == "phantom" else _install_real)(settings)


def _install_real(settings: Settings) -> None:
    # Only now: these need a torch that is known to be new enough.
    from . import cuda_answers, redirect
    from .alignments import Alignments, compile_eagerly, flatten_recurrent_weights
    from .autocast import CudaAutocast
    from .patches import Patches
    from .session import Session

    session, patches = Session(settings), Patches()
    cuda_answers.install(session)
    autocast, alignments = CudaAutocast(), Alignments(session)
    autocast.install()
    alignments.install(patches)
    flatten_recurrent_weights(session)
    compile_eagerly(session)
    _kept.extend([autocast, alignments])
    _follow_training(session, patches)
    redirect.install(session, patches)


def _install_phantom(settings: Settings) -> None:
    from . import observe, phantom_distributed
    from .allocator_record import AllocatorRecord
    from .initialisation import skip_initialisation
    from .patches import Patches
    from .session import Session
    from .values import Values

    session, patches = Session(settings), Patches()
    session.allocator = AllocatorRecord(session.assume)
    session.allocator.install()
    session.values = Values(session.spans, settings.values)
    if not settings.keep_init:
        skip_initialisation()
    phantom_distributed.install()
    _follow_training(session, patches)
    observe.install(session, session.values, patches)


def _follow_training(session: Session, patches: Patches) -> None:
    from . import optimizers, profiler
    from .modules import ModuleCalls

    _kept.append(session)
    profiler.switch_off_script_profiling(session.assume, patches)
    profiler.break_spans_at_annotations(session.spans, patches)
    optimizers.install(session)
    ModuleCalls(session.spans, session.root_called).install(patches)
