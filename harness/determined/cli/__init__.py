"""``det``, the command line."""


def main() -> None:
    """The console script; exits the process."""
    from determined.cli.following.interrupt import interrupt_once

    interrupt_once()  # before the imports, which take longest
    from determined.cli.light import import_less

    import_less()
    from determined.cli.root import app

    app()
