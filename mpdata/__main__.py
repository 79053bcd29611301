"""``python -m mpdata``, or ``mpdata``."""

import sys

from mpdata.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
