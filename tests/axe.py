"""axe-core, which finds faults of accessibility in a page, from its npm package."""

from __future__ import annotations

import functools
import tarfile
from pathlib import Path
from typing import Any

from tests.installed import kept, run_or_skip

VERSION = "4.10.3"
FILE = "axe.min.js"
SERIOUS = ("serious", "critical")


@functools.cache
def script() -> str:
    """The text of axe-core. Skips the test that asks where npm cannot get it."""
    return (kept(f"axe-core-{VERSION}", _install) / FILE).read_text()


def _install(home: Path) -> None:
    home.mkdir(parents=True)
    packed = ["npm", "pack", "--silent", f"axe-core@{VERSION}", "--pack-destination", str(home)]
    run_or_skip("axe-core", packed)
    (archive,) = home.glob("*.tgz")
    with tarfile.open(archive) as package:
        found = package.extractfile("package/axe.min.js")
        assert found is not None
        (home / FILE).write_bytes(found.read())
    archive.unlink()


def findings(driver: Any) -> list[str]:
    """The serious faults of the page that ``driver`` shows, each with its rule and its first element."""
    # Not through a script element, which the page's policy would refuse.
    driver.execute_script(script())
    found = driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, {resultTypes: ['violations']}).then((found) => done(found.violations));"
    )
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {one['nodes'][0]['html'][:300]}"
        for one in found
        if one["impact"] in SERIOUS
    ]
