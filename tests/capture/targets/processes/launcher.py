"""Starts the real training as a subprocess, after some work of its own."""

import subprocess
import sys
from pathlib import Path

subprocess.run([sys.executable, "-c", "print('a process without torch')"], check=True)
sys.exit(subprocess.run([sys.executable, Path(__file__).parents[1] / "to_device.py"]).returncode)
