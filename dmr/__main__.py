"""``python -m dmr``, or ``dmr``."""

import sys

from dmr.cli import main

if __name__ == "__main__":
    sys.exit(main())
