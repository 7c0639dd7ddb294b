"""`arithscope` and `python -m arithscope` run the command line."""

import os
import sys


def main() -> None:
    """Entry point of the process: what must happen before the command line and torch are imported."""
    # Threads of an operation that wait for each other sleep instead of spinning: if other processes need the cores, spinning
    # makes short operations many times slower. A user's own setting is kept.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from arithscope.cli.app import main as command_line

        command_line()
    except KeyboardInterrupt:  # before the command line handles signals itself
        print("Stopped.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
