"""`python -m safemargin` is the command `safemargin`."""

import sys

from safemargin.cli import main

sys.exit(main())
