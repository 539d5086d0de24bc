"""Names of source lines: ``PATH:LINE`` of the user's own code and, folded behind it, of an installed package.

A capture names what a library does on behalf of a script ``train.py:42 < transformers/trainer.py:2231``: the
line of the script, then the innermost one of the package. Where no frame is the user's, as in ``python -m
package``, the first part is empty.
"""

from __future__ import annotations

_SEPARATOR = " < "


def user_line(name: str) -> str:
    """The folded name: the line of the user's own code; that of the package where no frame is the user's."""
    user, _, package = name.partition(_SEPARATOR)
    return user or package


def package_line(name: str) -> str:
    """The unfolded name: the innermost line outside of torch and the standard library, whoever wrote it."""
    user, _, package = name.partition(_SEPARATOR)
    return package or user
