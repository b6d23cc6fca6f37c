"""`python -m straightdp`: the command line."""

import sys

from straightdp.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
