"""Operators of DTensors: their parts are made, not computed.

Since torch 2.10, C++ calls the operators of the parts (``dispatchDTensorOp``, ``python_variable.cpp``),
where the key of ``values.operators`` is excluded. They are called here instead, as earlier releases and
the slow path of newer ones do: ``OpDispatcher`` of ``torch.distributed.tensor._dispatch``, torch 2.10 to
2.13.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from ...values.operators import unfollowed
from .operators import tensors_in

_MODULE = "torch.distributed.tensor"
_SLOW_PATH = "_propagate_op_sharding_dispatch_slow_path"


def is_of_dtensors(args: Any, kwargs: Any) -> bool:
    """Return whether C++ would call an operator for the parts of its arguments."""
    module = sys.modules.get(_MODULE)
    if module is None or not hasattr(getattr(module, "DTensor", None), "_op_dispatcher"):
        return False
    if not hasattr(module.DTensor._op_dispatcher, _SLOW_PATH) or torch._C._len_torch_dispatch_stack():
        return False
    return any(type(tensor) is module.DTensor for tensor in tensors_in((*args, *kwargs.values())))


def call(overload: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operator returns, calling it for the parts that this rank has."""
    from torch.distributed.tensor._op_schema import OutputSharding
    from torch.utils._python_dispatch import return_and_correct_aliasing

    dispatcher = sys.modules[_MODULE].DTensor._op_dispatcher
    handler = dispatcher._custom_op_handlers.get(overload)
    if handler is not None:
        return handler(overload, args, kwargs)
    info = dispatcher.unwrap_to_op_info(overload, args, kwargs)
    with unfollowed():  # it traces the operator with tensors that have no memory
        sharding = getattr(dispatcher, _SLOW_PATH)(overload, args, kwargs, info, True)
    if not isinstance(sharding, OutputSharding):  # the result of others that it consists of
        return sharding
    info.output_sharding = sharding
    local = dispatcher._dispatch_get_local_results_slow_path(overload, args, info)
    takes_part = info.compute_mesh._is_current_rank_part_of_mesh()
    schema = overload._schema
    in_place = schema.name.endswith("_")
    out = any(argument.is_out for argument in schema.arguments)
    if in_place or out or overload == torch.ops.aten.equal.default:
        return dispatcher._dispatch_fast_path_python_tail(
            overload, args, kwargs, info.compute_mesh, sharding, local, takes_part, in_place, out
        )
    result = dispatcher.wrap(local, sharding.output_spec)
    if takes_part and schema._is_view_op():
        return return_and_correct_aliasing(overload, args, kwargs, result)
    return result
