"""Stand-in until the collectives are there."""


def install() -> None:
    """Nothing yet."""
