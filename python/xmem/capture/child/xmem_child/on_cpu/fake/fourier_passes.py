"""How large the work area of a cuFFT plan is, by the rules of ``csrc/phantom/libraries/cufft_sizes.cpp``.

That file has their sources and says where they fail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_HALF_BYTES = 4  # of a complex number
_FLOAT_BYTES = 8
# So many transforms occupy every multiprocessor.
_MANY = 132


def work_bytes(lengths: Sequence[int], batch: int, complex_bytes: int, *, real: bool, strided: bool) -> int:
    """Return the size of the work area of a plan.

    Args:
        lengths: Of the signal, one to three; the last is the contiguous one.
        batch: Number of transforms.
        complex_bytes: Bytes of a complex number.
        real: One side is real numbers.
        strided: Neighbours in the last dimension are not adjacent.
    """
    *others, last = lengths
    lines = math.prod(others)
    kept = last // 2 + 1 if real else last
    if real:
        most = _real_pass(last, lines, batch, complex_bytes)
    else:
        most = _complex_pass(last, lines * batch, complex_bytes, strided=strided)
    for size in others:
        most = max(most, _complex_pass(size, lines // size * kept * batch, complex_bytes, strided=True))
    return most


class _Length:
    """A length, of which all rules need the factors."""

    def __init__(self, n: int, complex_bytes: int) -> None:
        self._n, self._bytes = n, complex_bytes
        self._prime = _largest_prime_factor(n)
        self._power_of_two = n & (n - 1) == 0
        self._power_of_prime = _is_power(self._prime, n)
        self.bluestein = self._prime > 127

    @property
    def convolution(self) -> int:
        power = 1 << (2 * self._n - 2).bit_length()
        return power if power <= 8192 else _next_smooth(2 * self._n - 1)

    def dense_in_one_kernel(self, batch: int) -> bool:
        if self.bluestein:
            return self._convolved_in_one_kernel()
        if self._power_of_two:
            if self._bytes == _HALF_BYTES:
                return self._n <= 8192
            return self._n <= 16384 or (self._bytes == _FLOAT_BYTES and self._n == 32768 and batch >= _MANY)
        if self._prime > 7:
            return self._prime == self._n or (self._prime <= 31 and self._n <= 1331)
        return self._n * self._bytes <= (128 << 10 if self._prime == 7 else 227 << 10)

    def strided_in_one_kernel(self, batch: int) -> bool:
        if self.bluestein:
            return self._convolved_in_one_kernel()
        if self._bytes == _HALF_BYTES:
            return self._n <= 8192
        if self._bytes != _FLOAT_BYTES:
            if self._power_of_two:
                return self._n <= 2048
            return self._n <= (3125 if self._power_of_prime else 512) and self._small_kernel()
        if self._prime <= 3 and self._n > 1024:
            return self._n <= 2304 or (self._n <= 8192 and batch >= _MANY)
        return self._n <= (2401 if self._power_of_prime else 1024) and self._small_kernel()

    def real_in_one_kernel(self, batch: int) -> bool:
        if self.bluestein:
            return False
        if self._power_of_two:
            if self._bytes == _HALF_BYTES:
                return self._n <= 8192
            if self._bytes != _FLOAT_BYTES:
                return self._n <= 4096
            return self._n <= 16384 or (self._n <= 65536 and batch >= _MANY)
        return self._n <= (3125 if self._power_of_prime else 1080) and self._small_kernel()

    def _convolved_in_one_kernel(self) -> bool:
        return self.convolution * max(self._bytes, _FLOAT_BYTES) <= 64 << 10

    def _small_kernel(self) -> bool:
        n = self._n
        if n <= 32 or self._power_of_prime:
            return True
        if self._prime > 11:
            return self._bytes == _FLOAT_BYTES and self._prime <= 23 and n % 4 == 0 and 64 <= n <= 128
        if n % 49 == 0:
            return False
        return n % 25 != 0 or n % 8 == 0 or (n % 2 == 0 and n <= 300)


def _complex_pass(n: int, transforms: int, complex_bytes: int, *, strided: bool) -> int:
    length = _Length(n, complex_bytes)
    one = length.strided_in_one_kernel if strided else length.dense_in_one_kernel
    if one(transforms):
        return 0
    if length.bluestein:
        return _convolutions(length.convolution, transforms, complex_bytes)
    return n * transforms * complex_bytes


def _real_pass(n: int, lines: int, batch: int, complex_bytes: int) -> int:
    if _Length(n, complex_bytes).real_in_one_kernel(lines * batch):
        return 0
    even = n % 2 == 0
    inner = n // 2 if even else n
    transforms = lines * (batch if even else (batch + 1) // 2)
    length = _Length(inner, complex_bytes)
    one_kernel = length.dense_in_one_kernel(transforms)
    copied = inner * transforms * complex_bytes
    if not one_kernel and length.bluestein:
        return copied + _convolutions(length.convolution + 1, transforms, complex_bytes)
    line = (inner if one_kernel else inner + 1) * transforms * complex_bytes
    twice = not even or (complex_bytes == _HALF_BYTES and batch > 3 and batch % 2 != 0)
    return copied + _rounded_up(line) if twice else line


def _convolutions(elements: int, transforms: int, complex_bytes: int) -> int:
    return 2 * _rounded_up(elements * transforms * complex_bytes)


def _rounded_up(size: int) -> int:
    return -(-size // 1024) * 1024


def _next_smooth(number: int) -> int:
    """The least product of 2, 3 and 5 that is not below."""
    least = 2 * number
    fives = 1
    while fives < 2 * number:
        threes = fives
        while threes < 2 * number:
            product = threes
            while product < number:
                product *= 2
            least = min(least, product)
            threes *= 3
        fives *= 5
    return least


def _is_power(prime: int, number: int) -> bool:
    while number > 1 and number % prime == 0:
        number //= prime
    return number == 1


def _largest_prime_factor(number: int) -> int:
    largest = 1
    for factor in range(2, math.isqrt(number) + 1):
        while number % factor == 0:
            number //= factor
            largest = factor
    return max(largest, number)
