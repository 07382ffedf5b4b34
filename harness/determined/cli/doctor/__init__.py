"""Finding out what is wrong.

`det cluster doctor`: :mod:`.examine` collects facts, :mod:`.judge` makes findings of them (no I/O).
`det trial support-bundle`: :mod:`.bundle` writes all that is known about one trial into one file.
"""
