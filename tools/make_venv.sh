#!/bin/sh
# Create a virtual environment with the first suitable Python on PATH, or say what is missing.
# Usage: make_venv.sh FOLDER          PYTHON=/path/to/python chooses the interpreter.
set -eu

problem=""
for python in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
  command -v "$python" >/dev/null 2>&1 || continue
  if ! version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then
    continue  # a launcher without the version behind it, as pyenv leaves them
  elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    problem="$python is Python $version; 3.11 or newer is needed"
  elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    problem="$python ($version) lacks the module venv; on Debian and Ubuntu: apt install python$version-venv"
  elif ! "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'; then
    problem="$python ($version) lacks its C headers; on Debian and Ubuntu: apt install python$version-dev"
  else
    exec "$python" -m venv "$1"
  fi
done

echo "make: no suitable Python: ${problem:-none was found on PATH}." >&2
echo "make: install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.11 ..." >&2
exit 1
