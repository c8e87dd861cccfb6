"""``python -m padserve``."""

import sys

from padserve.cli.main import main

sys.exit(main())
