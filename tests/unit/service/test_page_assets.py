"""Files of other projects that lie among those of the service's own pages."""

from __future__ import annotations

import hashlib

from determined_service.front import assets

XTERM = {
    "xterm.js": "1f991ac3b4b283ebf96e60ae23a00a52765dd3a2e46fa6fdda9f1aab032f7495",
    "xterm.css": "ba8e6985669488981ccf40c0cefe3aba80722cb6c92de7ad628b0bd717faf2b6",
    "addon-fit.js": "bdaefa370b1bfc42ee88d46fe6072400902a4d4b2d45cd93438dda9b23c97089",
}
"""SHA-256 of the files in npm's @xterm/xterm 5.5.0 and @xterm/addon-fit 0.10.0."""


def test_the_terminal_library_is_as_it_was_published() -> None:
    served = assets.assets()
    found = {name: hashlib.sha256(served[name].content).hexdigest() for name in XTERM}
    assert found == XTERM
