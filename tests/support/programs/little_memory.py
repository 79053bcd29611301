"""A program on a node with so many MiB of memory left: little_memory.py MIB PROGRAM ..."""

from __future__ import annotations

import runpy
import sys

from dmr.resize import strategy

FREE = int(sys.argv[1]) * 2**20
strategy.free_on_host = lambda: FREE
sys.argv = sys.argv[2:]
if sys.argv[0] == "-m":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
