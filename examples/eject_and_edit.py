"""Write the emitted source to a file, edit it, and build the edited file without tilegen."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import tilegen as tg

SPEC = tg.Gemm(m=1024, n=1024, k=1024, dtype="float16", layout="nt") | tg.Bias() | tg.Relu()

# Runs a kernel file with tilegen made impossible to import.
RUN = """
import runpy, sys
sys.modules["tilegen"] = None
module = runpy.run_path(sys.argv[1])
print(module["build"]().script())
module["main"]()
"""


def main() -> None:
    """Eject, change the number of stages by hand, and run the file's own check."""
    target = None if torch.cuda.is_available() else "sm_90a"
    program = tg.build(SPEC, target=target, schedule=tg.GemmSchedule(num_stages=4))
    edited = program.source.replace("num_stages=4", "num_stages=2")
    assert edited != program.source
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.py")  # `tilegen eject` writes the same text
        path.write_text(edited)
        subprocess.run([sys.executable, "-c", RUN, str(path)], check=True, cwd=folder)


if __name__ == "__main__":
    main()
