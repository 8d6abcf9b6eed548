"""`python -m mysglang`: the same as the command `mysglang`."""

import sys

from mysglang.cli.main import main

sys.exit(main())
