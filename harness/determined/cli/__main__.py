"""``python -m determined.cli``: the same as ``det``."""

from determined.cli import main

main()
