"""Records that wait in a file come back unchanged, in order."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from determined.core._spool import Spool, SpoolFull


def test_first_in_first_out() -> None:
    spool = Spool()
    assert spool.take(10, 10) == []
    pairs = [(b"h%d" % i, b"x" * i) for i in range(10)]
    for pair in pairs[:6]:
        spool.put(*pair)
    assert spool.take(3, 100) == pairs[:3]
    for pair in pairs[6:]:
        spool.put(*pair)
    assert len(spool) == 7
    # The fourth is 3 bytes, the fifth 4.
    assert spool.take(100, 8) == pairs[3:5]
    # One is always taken.
    assert spool.take(100, 1) == pairs[5:6]
    assert spool.take(100, 1000) == pairs[6:]
    assert len(spool) == 0
    spool.put(b"again", b"")
    assert spool.take(1, 1) == [(b"again", b"")]


def test_the_limit_counts_waiting_records_and_an_empty_file_starts_anew() -> None:
    spool = Spool(limit_bytes=25)
    spool.put(b"a", b"0123456789")
    with pytest.raises(SpoolFull, match="limit is 25"):
        spool.put(b"b", b"0123456789ab")
    assert spool.take(9, 99) == [(b"a", b"0123456789")]
    spool.put(b"b", b"0123456789ab")
    assert spool.take(9, 99) == [(b"b", b"0123456789ab")]


def test_nothing_of_it_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = Spool()
    spool.put(b"a", b"b")
    assert list(tmp_path.iterdir()) == []
    spool.close()
    assert spool.take(1, 1) == []


def test_a_disk_without_room(tmp_path: Path) -> None:
    """A limit on the size of files simulates a full disk: the third pair does not fit completely."""
    code = (
        "import resource, signal, tempfile\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from determined.core._spool import Spool, SpoolFull\n"
        "spool = Spool()\n"
        "spool.put(b'1', b'x' * 400); spool.put(b'2', b'x' * 400)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        spool.put(b'3', b'x' * 400)\n"
        "    except SpoolFull as error:\n"
        "        print(error)\n"
        "print([head for head, _ in spool.take(9, 9999)])\n"
        "spool.put(b'4', b'y')\n"
        "print(spool.take(9, 9999))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    first, second, kept, after = done.stdout.splitlines()
    assert "bytes were written" in first
    assert second == first or os.strerror(errno.EFBIG) in second
    assert kept == "[b'1', b'2']"
    assert after == "[(b'4', b'y')]"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000
