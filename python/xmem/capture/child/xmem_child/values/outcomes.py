"""Conditions where one outcome only raises an exception: unknown values take the other one.

``assert condition``, ``if not condition: raise``, checks of arguments: a job that trains has passed them.
"""

from __future__ import annotations

import dis
from functools import lru_cache
from types import CodeType, FrameType

from ..records.failures import is_own

# Between the call that reads and the jump that decides.
_BETWEEN = frozenset({"CACHE", "CALL", "NOP", "NOT_TAKEN", "PRECALL", "TO_BOOL"})
_LEAVES = ("JUMP", "RETURN", "YIELD", "FOR_ITER", "SEND")


def allowed_outcome(frame: FrameType | None) -> bool | None:
    """Return the value that keeps a condition from raising an exception; None where it decides more.

    Args:
        frame: Frame of the read; frames of the capture are skipped.
    """
    while frame is not None and is_own(frame.f_code):
        frame = frame.f_back
    return None if frame is None else _allowed(frame.f_code, frame.f_lasti)


@lru_cache(maxsize=1024)
def _allowed(code: CodeType, read_at: int) -> bool | None:
    instructions = list(dis.get_instructions(code))
    places = {instruction.offset: place for place, instruction in enumerate(instructions)}
    place = places.get(read_at)
    if place is None:
        return None
    if not _decides(instructions[place]):
        place += 1
        while place < len(instructions) and instructions[place].opname in _BETWEEN:
            place += 1
    if place >= len(instructions) or not _decides(instructions[place]):
        return None
    jump = instructions[place]
    goes_on, jumps = (_only_raises(instructions, at) for at in (place + 1, places[jump.argval]))
    if goes_on == jumps:
        return None
    jumps_if = "IF_TRUE" in jump.opname
    return jumps_if if goes_on else not jumps_if


def _decides(instruction: dis.Instruction) -> bool:
    return "JUMP" in instruction.opname and (
        "IF_TRUE" in instruction.opname or "IF_FALSE" in instruction.opname
    )


def _only_raises(instructions: list[dis.Instruction], place: int) -> bool:
    """Return whether the instructions from ``place`` on only raise an exception."""
    for instruction in instructions[place:]:
        if instruction.opname == "RAISE_VARARGS":
            return True
        if any(name in instruction.opname for name in _LEAVES):
            return False
    return False
