"""Random numbers as a GPU draws them: routes, masks and lengths drawn by a script match those of a real run.

PyTorch draws with cuRAND's Philox4x32-10 (``aten/src/ATen/native/cuda/DistributionTemplates.h``): a thread
has a subsequence of its own, and writes one number to each fourth of what all threads fill at once. torch 2.6
and 2.12 advance the generator by the same amount. Seed and offset are those of the script's generator on the
GPU, which PyTorch keeps on the host. Uniform numbers and integers are equal to the bit; normal ones up to
rounding, since a GPU takes a faster sine and cosine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from . import host_tensors
from .operators import Operator, unfollowed

_THREADS = 256  # of a block
_AT_ONCE = 4  # numbers of one call of a thread
_WORD = 0xFFFFFFFF
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_SMALLEST = 2.0**-32
# From here on, integers are drawn from 64 bits (in some releases from 2^32 on).
_WIDE = 1 << 28
_TYPES = (torch.float32, torch.float16, torch.bfloat16)

Draw = Callable[[], torch.Tensor]


def state_of(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the state that a call of a random operator begins with, for ``prepare``; call this before it.

    Returns:
        Seed and offset; None if the generator does not give them, as while a graph is captured.
    """
    if operator.name not in _DRAWS:
        return None
    generator = kwargs.get("generator")
    try:
        if generator is None:
            device = args[0].device if args and isinstance(args[0], torch.Tensor) else kwargs.get("device")
            index = None if device is None else torch.device(device).index
            generator = torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
        seed, offset = generator.get_state().view(torch.int64).tolist()
    except (AssertionError, IndexError, RuntimeError, ValueError):  # the first: a build without CUDA
        return None
    return seed, offset


def prepare(
    operator: Operator, state: Any, result: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Draw | None:
    """Return a function that finds what a call wrote to ``result``; None unless that is all of its
    storage."""
    draw = _DRAWS.get(operator.name)
    if draw is None or state is None or not result.numel():
        return None
    size, strides, dtype = result.size(), result.stride(), result.dtype
    numbers = draw(operator, dtype, args, kwargs)
    if numbers is None:
        return None
    seed, offset = state
    count = result.numel()
    threads, calls = _threads_of(count, result.device), calls_of(count, result.device)

    def drawn() -> torch.Tensor:
        with unfollowed():
            # A kernel's positions are those in memory, whatever the order of the dimensions.
            in_memory = numbers(_bits(seed, offset, threads, calls))[:count].to(dtype).clone()
            return host_tensors.empty(0, dtype=dtype).set_(in_memory.untyped_storage(), 0, size, strides)

    return drawn


def calls_of(count: int, device: torch.device) -> int:
    """Return how often each thread draws four words for ``count`` numbers; PyTorch adds four times that to
    the offset."""
    return -(-count // (_AT_ONCE * _threads_of(count, device)))


def _threads_of(count: int, device: torch.device) -> int:
    properties = torch.cuda.get_device_properties(device)
    blocks: int = properties.multi_processor_count * (properties.max_threads_per_multi_processor // _THREADS)
    return _THREADS * min(blocks, -(-count // _THREADS))


def _bits(seed: int, offset: int, threads: int, calls: int) -> torch.Tensor:
    """Return words of 32 bits, as int64, of the shape (calls, 4, threads)."""
    first = offset // _AT_ONCE + host_tensors.arange(calls).unsqueeze(1)
    thread = host_tensors.arange(threads).unsqueeze(0)
    x, y = (first & _WORD).expand(calls, threads), (first >> 32).expand(calls, threads)
    z, w = thread.expand(calls, threads), host_tensors.zeros(calls, threads, dtype=torch.int64)
    key = [seed & _WORD, (seed >> 32) & _WORD]
    for _ in range(_ROUNDS):
        # Products of 64 bits wrap around the sign, which leaves each half as it is.
        one, other = x * _FACTORS[0], z * _FACTORS[1]
        x, y, z, w = (
            ((other >> 32) & _WORD) ^ y ^ key[0],
            other & _WORD,
            ((one >> 32) & _WORD) ^ w ^ key[1],
            one & _WORD,
        )
        key = [(part + step) & _WORD for part, step in zip(key, _STEPS, strict=True)]
    return torch.stack((x, y, z, w), 1)


def _uniform(bits: torch.Tensor) -> torch.Tensor:
    """Return uniform numbers above 0, up to 1."""
    return bits.to(torch.float32) * _SMALLEST + _SMALLEST / 2


def _normal(bits: torch.Tensor) -> torch.Tensor:
    """Return normal numbers by Box and Muller's method: the first two words make two numbers, as do the last
    two."""
    x, y, z, w = bits.unbind(1)
    pairs = []
    for radius, angle in ((x, y), (z, w)):
        length = (-2.0 * _uniform(radius).log()).sqrt()
        turn = angle.to(torch.float32) * (_SMALLEST * 2 * math.pi) + _SMALLEST * math.pi
        pairs += [turn.sin() * length, turn.cos() * length]
    return torch.stack(pairs, 1)


def _asked(operator: Operator, names: tuple[str, str], args: Any, kwargs: Any) -> tuple[float, float]:
    """Return the parameters of a fill in place; a factory draws with 0 and 1."""
    if not operator.writes:
        return 0.0, 1.0
    low, high = (operator.given(name, args, kwargs) for name in names)
    return low, high


def _draw_uniform(operator: Operator, dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    low, high = _asked(operator, ("from", "to"), args, kwargs)
    if dtype not in _TYPES:
        return None

    def numbers(bits: torch.Tensor) -> torch.Tensor:
        drawn = _uniform(bits).flatten()
        return torch.where(drawn == 1.0, 0.0, drawn) * (high - low) + low

    return numbers


def _draw_normal(operator: Operator, dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    mean, deviation = _asked(operator, ("mean", "std"), args, kwargs)
    if dtype not in _TYPES:
        return None
    return lambda bits: _normal(bits).flatten() * deviation + mean


def _draw_integers(operator: Operator, dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    names = {argument.name for argument in operator.arguments}
    low = next((operator.given(name, args, kwargs) for name in ("low", "from") if name in names), 0)
    high = next((operator.given(name, args, kwargs) for name in ("high", "to") if name in names), None)
    if high is None or not 0 < high - low < _WIDE or dtype == torch.bool:
        return None
    return lambda bits: bits.flatten() % (high - low) + low


def _draw_hits(operator: Operator, _dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    share = operator.given("p", args, kwargs)
    return lambda bits: _uniform(bits).flatten() < share


_DRAWS: dict[str, Callable[[Operator, torch.dtype, Any, Any], Any]] = {
    **dict.fromkeys(("rand", "rand.generator", "rand_like", "uniform_"), _draw_uniform),
    **dict.fromkeys(("randn", "randn.generator", "randn_like", "normal_"), _draw_normal),
    **dict.fromkeys(("randint", "randint.generator", "randint.low", "randint.low_generator"), _draw_integers),
    **dict.fromkeys(("randint_like", "randint_like.low_dtype", "random_.from", "random_.to"), _draw_integers),
    "bernoulli_.float": _draw_hits,
}
