"""Requirements of the wheels in a folder that hold for the Python of an image, and not for this one.

    python other_wheels.py FOLDER VERSION       VERSION: of the image's Python, such as 3.11.2

pip fetches what the Python that runs it needs, and releases of one Python differ in that, too:
``async-timeout>=4; python_full_version < "3.11.3"``. Prints a requirement per line, without its marker.
"""

from __future__ import annotations

import email
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename


def missing(folder: Path, version: str) -> list[str]:
    """The requirements that no wheel of ``folder`` is for."""
    wheels = list(folder.glob("*.whl"))
    there = {parse_wheel_filename(wheel.name)[0] for wheel in wheels}
    found = {}
    for wheel in wheels:
        for requirement in _only_theirs(wheel, version):
            if canonicalize_name(requirement.name) not in there:
                requirement.marker = None
                found[str(requirement)] = None
    return sorted(found)


def _only_theirs(wheel: Path, version: str) -> Iterator[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    extras = ["", *metadata.get_all("Provides-Extra", [])]
    for line in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is not None and any(_differs(marker, extra, version) for extra in extras):
            yield requirement


def _differs(marker: Marker, extra: str, version: str) -> bool:
    theirs = {"extra": extra, "python_full_version": version, "implementation_version": version}
    return marker.evaluate(theirs) and not marker.evaluate({"extra": extra})


if __name__ == "__main__":
    print(*missing(Path(sys.argv[1]), sys.argv[2]), sep="\n")
