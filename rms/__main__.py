"""``python -m rms``, or ``rms``."""

import sys

from rms.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
