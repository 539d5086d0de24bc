"""What FlashAttention 3's build writes down: nothing was switched off."""

from collections import defaultdict

CONFIG: dict[str, dict[str, bool]] = {"build_flags": defaultdict(bool)}
