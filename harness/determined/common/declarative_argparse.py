"""The classes by which Determined's own command line was declared."""

raise ImportError(
    "determined.common.declarative_argparse is not in this release: use argparse; "
    "`det` itself is made with Typer"
)
