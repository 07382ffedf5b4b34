"""``det``, the command line."""


def main() -> None:
    """The console script; exits the process."""
    from determined.cli._root import app

    app()
