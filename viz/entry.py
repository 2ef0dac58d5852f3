"""Entry point of the `pagelens` command: Ctrl-C ends it quietly, even while the libraries are still loading."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from .cli import app

        app()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
