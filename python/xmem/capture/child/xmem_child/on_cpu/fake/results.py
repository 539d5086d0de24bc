"""What operators return, by the arguments that they are given: sizes, strides and types, and no values.

PyTorch's own functions for the ``meta`` device tell, once for each combination of arguments.
"""

from __future__ import annotations

from typing import Any

import torch

from ...unseen import Aside

_MOST_KEPT = 1 << 16

# How a result is described: by a tensor to make, an argument that is returned, several of those, or a value.
NEW, GIVEN, SEVERAL, VALUE = range(4)


class NoResultError(Exception):
    """PyTorch does not tell what an operator returns without computing it, or the arguments are wrong."""


class Results:
    """Descriptions of results, kept by operator and arguments.

    Args:
        aside: Where PyTorch is asked.
    """

    def __init__(self, aside: Aside) -> None:
        self._aside = aside
        self._kept: dict[Any, Any] = {}

    def of(self, operator: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
        """Describe the result of a call, and the sizes of its ``out`` arguments, by their sorted names.

        Raises:
            NoResultError: It cannot be told.
        """
        by_type = operator.is_elementwise
        key = (operator.overload, _signature(args, by_type), _signature(kwargs, by_type) if kwargs else None)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            found = self._kept[key] = self._aside.run(lambda: _ask(operator, args, kwargs))
        if isinstance(found, NoResultError):
            raise found.with_traceback(None)
        return found  # type: ignore[no-any-return]


def _signature(value: Any, by_type: bool) -> Any:
    """Return what the result depends on; of the numbers of elementwise operators it is only the type."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.size(), value.stride()
    if isinstance(value, (list, tuple)):
        return tuple([_signature(each, by_type) for each in value])
    if isinstance(value, dict):
        return tuple([(name, _signature(each, by_type)) for name, each in value.items()])
    if by_type and isinstance(value, (float, complex)):
        return float
    return None if isinstance(value, torch.Generator) else (type(value), value)


def _ask(operator: Any, args: Any, kwargs: Any) -> Any:
    given: dict[int, Any] = {}
    try:
        with torch.no_grad():
            meta_args = tuple([_on_meta(a, place, given) for place, a in enumerate(args)])
            meta_kwargs = {name: _on_meta(a, name, given) for name, a in kwargs.items()}
            if "device" in meta_kwargs:
                meta_kwargs["device"] = torch.device("meta")
            meta_kwargs.pop("pin_memory", None)
            result = operator.overload(*meta_args, **meta_kwargs)
            sizes = [tuple(meta_kwargs[name].size()) for name in sorted(operator.outputs)]
            return _described(result, given), sizes
    except Exception as error:
        return NoResultError(str(error))


def _on_meta(value: Any, place: Any, given: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        if place is not None:
            given[id(made)] = place
        return made
    if isinstance(value, (list, tuple)):
        return [_on_meta(each, None, given) for each in value]
    return None if isinstance(value, torch.Generator) else value


def _described(result: Any, given: dict[int, Any]) -> Any:
    if isinstance(result, torch.Tensor):
        if id(result) in given:
            return GIVEN, given[id(result)]
        if result.layout is not torch.strided:
            raise NoResultError(f"results of the layout {result.layout} are computed")
        return NEW, tuple(result.size()), tuple(result.stride()), result.dtype
    if isinstance(result, (list, tuple)):
        kind = list if isinstance(result, list) else tuple
        return SEVERAL, kind, [_described(each, given) for each in result]
    return VALUE, result
