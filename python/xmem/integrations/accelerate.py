"""Accelerate: ``find_executable_batch_size`` that begins where its search would end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from xmem.batch_size.own_script import find_own_batch_size

Result = TypeVar("Result")


def find_executable_batch_size(
    function: Callable[..., Result] | None = None, *, gpu: str | None = None, **options: Any
) -> Any:
    """Decorate a training function as ``accelerate.utils.find_executable_batch_size`` does.

    ::

        @find_executable_batch_size          # instead of accelerate's (starting_batch_size=128)
        def train(batch_size): ...

    The function is called with the largest batch that fits. Should it run out of memory all the same,
    accelerate's own search goes on from there.

    Args:
        function: The function, when the decorator is used without arguments.
        gpu: The GPU, by a name of ``xmem-fast gpus``; the one of this machine by default.
        **options: Of ``xmem.batch_size.find_own_batch_size``. With ``effective_batch``, the function gets the
            accumulation as its second argument, for the largest batch that divides what is asked for.

    Raises:
        ConfigError: See ``find_own_batch_size``; raised when the function is called.
        CaptureError: The script failed in a run.
    """
    if function is None:
        return functools.partial(find_executable_batch_size, gpu=gpu, **options)

    @functools.wraps(function)
    def train(*arguments: Any, **named: Any) -> Result:
        from accelerate.utils import find_executable_batch_size as search

        from xmem.integrations.this_gpu import gpu_or_own

        found = find_own_batch_size(**gpu_or_own(gpu, options))
        effective = options.get("effective_batch")

        def at(batch_size: int) -> Result:
            if effective is None:
                return function(batch_size, *arguments, **named)
            # A batch that accelerate made smaller divides the effective batch no more: round it up.
            return function(batch_size, -(-effective // batch_size), *arguments, **named)

        result: Result = search(at, starting_batch_size=found.size)()
        return result

    return train
