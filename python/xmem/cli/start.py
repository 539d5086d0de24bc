"""What the installed ``xmem-fast`` calls: it prints its version at once; all else is for the commands."""

from __future__ import annotations

import gc
import sys

from xmem import __version__

# Modules and answers are many objects that stay, and hardly any that are garbage in cycles: Python would look
# through them dozens of times before a small estimate is done.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000


def main() -> None:
    """Run the command line in ``sys.argv`` and exit with its status."""
    if sys.argv[1:] == ["--version"]:  # programs ask for it often, and it needs no parser
        try:
            print(f"xmem-fast {__version__}", flush=True)
            return
        except OSError:
            pass  # a full disk or a closed pipe, for which there is a message or a status of its own
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    from xmem.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
