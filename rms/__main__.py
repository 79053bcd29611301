"""The command ``rms``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rms.commandline import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    top = parser("rms", "Resource manager for malleable jobs (this version has its protocol only).")
    top.parse_args(argv)
    top.error("this version has no commands yet; expected --version or --help")


if __name__ == "__main__":
    sys.exit(main())
