"""Checkpoint files handed out by the service: which storages it opens, and the processes that read them.

:mod:`~determined_service.downloads.readers` is what routes use. The service's process itself opens no
storage: :mod:`~determined_service.downloads.reader` does, in a separate process with limited memory.
"""
