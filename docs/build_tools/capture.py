"""Run what the docs show, and keep what it prints in docs/captured/. Needs the embedded model, and triton.

    python docs/build_tools/capture.py

Run it again when the model or the output of a command has changed. It is no part of the build: a build should not
depend on a model, nor on how fast a machine is.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parents[1]
PAGELENS = Path(sys.executable).with_name("pagelens")
CAPTURES = {
    "quickstart.txt": [sys.executable, str(DOCS / "examples" / "quickstart.py")],
    "generate.txt": [str(PAGELENS), "generate", "--prompt", "A hacker is", "--max-tokens", "40"],
    "record.txt": [str(PAGELENS), "record", "--out", "run.kvtrace"],
    "inspect.txt": [str(PAGELENS), "inspect", "run.kvtrace"],
    "compile_table.txt": [sys.executable, "-m", "pagelens.kernels.compile_report"],
}


def main() -> None:
    """Write one file for each command; later commands find the files of the earlier ones."""
    environment = os.environ | {"COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"}
    with tempfile.TemporaryDirectory() as folder:
        for name, command in CAPTURES.items():
            done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            lines = [line.rstrip() for line in done.stdout.splitlines()]
            (DOCS / "captured" / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
            print(f"{name}: {len(lines)} lines")


if __name__ == "__main__":
    main()
