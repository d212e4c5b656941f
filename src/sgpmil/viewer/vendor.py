"""JavaScript libraries of others, fetched by npm when the package is set up or built.

    python -m sgpmil.viewer.vendor

It needs the standard library alone, for it also runs while the package is built.
"""

import argparse
import base64
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

VENDOR = Path(__file__).parent / "static" / "vendor"


@dataclass(frozen=True)
class Library:
    """A library of the npm registry.

    Args:
        package: Its name and version.
        digest: SHA-512 of its archive, as the registry states it.
        file: Name of the script that is kept.
        members: Members of the archive by the names that they are kept under.
    """

    package: str
    digest: str
    file: str
    members: dict[str, str]


OPENSEADRAGON = Library(
    "openseadragon@6.1.1",
    "g4iKe2q8B642SaBT3+x4ZF3/8b1TxPPydyjmtrOLgDrlYWMKd9ZXM+1Cb/xa9DVySkvs/7l6HR1nHKfD5F3Tsw==",
    "openseadragon.min.js",
    {
        "openseadragon.min.js": "package/build/openseadragon/openseadragon.min.js",
        "openseadragon.LICENSE.txt": "package/LICENSE.txt",
    },
)
AXE = Library(
    "axe-core@4.14.0",
    "9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==",
    "axe.min.js",
    {"axe.min.js": "package/axe.min.js", "axe.LICENSE.txt": "package/LICENSE"},
)
"""Checks of accessibility, for tests alone."""


class VendorError(Exception):
    """A library cannot be fetched."""


def fetch(library: Library, folder: Path = VENDOR) -> bool:
    """Fetch a library with npm, and keep its script and its licence.

    Args:
        library: The library.
        folder: Folder to write to.

    Returns:
        Whether it was fetched; otherwise it was there.

    Raises:
        VendorError: npm is missing or fails, or the archive is not the expected one.
    """
    if all((folder / name).exists() for name in library.members):
        return False
    npm = shutil.which("npm")
    if npm is None:
        raise VendorError(
            f"Expected npm to fetch {library.package}, but it is not installed. Install Node.js, "
            "then run: python -m sgpmil.viewer.vendor"
        )
    with tempfile.TemporaryDirectory() as place:
        command = [npm, "pack", library.package, "--ignore-scripts", "--silent"]
        done = subprocess.run(  # noqa: S603
            command, cwd=place, capture_output=True, text=True, check=False, timeout=120
        )
        archives = list(Path(place).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            raise VendorError(f"npm could not fetch {library.package}: {done.stderr.strip()}")
        content = archives[0].read_bytes()
    found = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != library.digest:
        raise VendorError(f"The archive of {library.package} is not the expected one: {found}.")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for name, member in library.members.items():
            file = archive.extractfile(member)
            if file is None:
                raise VendorError(f"Expected {member} in {library.package}, but it is not there.")
            temporary = folder / f".{name}.tmp"
            temporary.write_bytes(file.read())
            temporary.replace(folder / name)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch OpenSeadragon or, for tests, axe-core."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--axe", type=Path, metavar="FOLDER", help="fetch axe-core to a folder")
    axe: Path | None = parser.parse_args(arguments).axe
    try:
        if axe is None:
            fetch(OPENSEADRAGON)
        else:
            fetch(AXE, axe)
    except (VendorError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
