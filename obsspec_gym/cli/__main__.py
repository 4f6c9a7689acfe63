"""``python -m obsspec_gym.cli``."""

import sys

from obsspec_gym.cli import main

if __name__ == "__main__":
    sys.exit(main())
