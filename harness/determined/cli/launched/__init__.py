"""The common part of commands, notebooks, shells and TensorBoards.

:func:`~determined.cli.launched.commands.add_commands` gives a group list, describe, kill, logs, config and
set; a group's own module adds what starts and opens it. :mod:`~determined.cli.launched.start` builds the
configuration from options, :mod:`~determined.cli.launched.follow` streams the output.
"""
