"""Files: their names and digests, small ones read with limits, all written whole or not at all."""

import errno
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import unicodedata
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sgpmil.errors import SgpmilError

_BLOCK = 2**16
_BLOCKS = 64

_OWNER = re.compile(r"\.(?P<system>[0-9a-f]{6})-(?P<process>[0-9]+)\.[0-9a-f]{8}\.tmp$")

_LONGEST_NAME = 200
"""Bytes of a file name without suffix: systems allow 255 for the whole of it."""
_MOST_TEXT = 2**26
"""Bytes of the largest text that is read whole, unless its reader expects more: 64 MiB."""
_DEEPEST = 64
"""Levels of lists and objects in each other; files of this package and of others have a few."""
_UNSAFE = re.compile(r"""[\x00-\x1f\x7f"%*/:<>?\\|]|^\.|[. ]$""")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9\xb9\xb2\xb3]|lpt[0-9\xb9\xb2\xb3])(\..*)?", re.I)
"""Names that Windows keeps for devices, whatever their suffix."""


def file_name(identifier: str) -> str:
    """Make a file name, without suffix, of the name of a slide, a case or a fold.

    It is the name itself where every system can have a file of that name. Other characters become
    percent signs and numbers, as in web addresses, so that it never leaves its folder, two names
    never give one file (on systems that tell a from A), and `identifier_of` gives it back.

    Raises:
        SgpmilError: The name is empty, too long, or holds characters that no text has.

    Example:
        >>> file_name("TCGA-22 1.A"), file_name("../x"), file_name("con.1"), file_name("50%")
        ('TCGA-22 1.A', '%2E.%2Fx', '%63on.1', '50%25')
    """
    fault = name_fault(identifier)
    if fault:
        raise SgpmilError(
            f"Expected a name that can be a file's, but got {identifier[:80]!r}, which {fault}. "
            "Rename it."
        )
    return _encoded(identifier)


def identifier_of(name: str) -> str:
    """Return the name that `file_name` made a file name of.

    Example:
        >>> identifier_of("%2E.%2Fx")
        '../x'
    """
    return unquote(name, errors="strict")


def name_fault(identifier: str) -> str:
    """Say why a name cannot be a slide's, as "is empty"; empty where it can.

    Example:
        >>> name_fault("slide 1"), name_fault(chr(0))
        ('', 'holds control characters')
    """
    if not identifier.strip():
        return "is empty"
    if any(unicodedata.category(character) == "Cc" for character in identifier):
        return "holds control characters"
    try:
        size = len(_encoded(identifier).encode())
    except UnicodeEncodeError:
        return "holds characters that no text has"
    return f"takes {size} of at most {_LONGEST_NAME} bytes" if size > _LONGEST_NAME else ""


def refuse_unfit_names(names: Iterable[str], kind: type[SgpmilError], where: str) -> None:
    """Refuse names that cannot be a slide's.

    Args:
        names: The names.
        kind: Error to raise.
        where: Place of the names, for the message.

    Raises:
        SgpmilError: A name is empty, too long, or holds control characters; of the type `kind`.
    """
    faults = [(name, fault) for name in names if (fault := name_fault(name))]
    if faults:
        name, fault = faults[0]
        raise kind(
            f"Expected names of slides that can be file names, but got {len(faults)} that cannot, "
            f"the first {name[:80]!r}, which {fault} ({where}). Rename them."
        )


def printable_name(name: str) -> str:
    """Return a name on disk as text that can be printed and stored, whatever its bytes are.

    Example:
        >>> printable_name("slide"), len(printable_name(chr(0xDCFF)))
        ('slide', 4)
    """
    return os.fsencode(name).decode("utf-8", errors="backslashreplace")


def _encoded(identifier: str) -> str:
    text = _UNSAFE.sub(lambda found: _escaped(found[0]), identifier)
    if not unicodedata.is_normalized("NFC", identifier):
        # macOS takes both spellings of a letter with an accent for one name.
        text = "".join(c if c.isascii() else _escaped(c) for c in text)
    return f"{_escaped(text[0])}{text[1:]}" if _DEVICE.fullmatch(text) else text


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def regular_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file, and of nothing that would never end, such as a pipe.

    Raises:
        OSError: There is nothing, or a folder.
        ValueError: It is no regular file.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise ValueError("a pipe or device, which is no regular file")
    return Path(path)


def read_text(path: Path, *, most_bytes: int = _MOST_TEXT) -> str:
    """Read a text file, as UTF-8 with or without a mark.

    Args:
        path: The file.
        most_bytes: Size from which it is refused.

    Raises:
        OSError: There is none, or the system cannot read it.
        ValueError: It is no regular file, too large, or no text.
    """
    with regular_file(path).open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"more than {most_bytes:,} bytes")
    return content.decode("utf-8-sig")


def read_json(path: Path, *, most_bytes: int = _MOST_TEXT) -> Any:
    """Read a JSON file.

    Whatever is wrong with the file, it is one of two errors: a caller that catches both, and says
    what the file should be, has caught all.

    Args:
        path: The file.
        most_bytes: Size from which it is refused.

    Raises:
        OSError: There is none, or the system cannot read it.
        ValueError: It is no regular file, too large, no JSON, or nested too deeply.
    """
    try:
        content = json.loads(read_text(path, most_bytes=most_bytes))
    except RecursionError as error:
        raise ValueError("content that is nested too deeply") from error
    level, depth = [content], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError("content that is nested too deeply")
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return content


def content_digest(path: Path) -> str:
    """Return a digest of a file's size and content, the same for a copy of it.

    Of a file of more than four megabytes, 64 blocks of 64 kilobytes are read, evenly spaced from
    the first to the last.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        if size <= _BLOCK * _BLOCKS:
            digest.update(file.read())
        else:
            for number in range(_BLOCKS):
                file.seek(number * (size - _BLOCK) // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def temporary_sibling(path: Path) -> Path:
    """Return a new hidden name in the same folder, so that renaming to `path` is one step.

    It names this process, so that `remove_leftovers` knows when nobody writes to it any more.
    """
    return path.with_name(f".{path.name}.{_system()}-{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left of a file or folder: beside it, and in it.

    Files that a living process of this or another machine may still write stay.

    Args:
        path: A file, or a folder with all below it.
    """
    found = list(path.parent.glob(f".{glob.escape(path.name)}.*.tmp")) if path.name else []
    if path.is_dir():
        found += path.rglob(".*.tmp")
    for leftover in found:
        owner = _OWNER.search(leftover.name)
        if owner is None or owner["system"] != _system() or _is_alive(int(owner["process"])):
            continue
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            with suppress(OSError):
                leftover.unlink()


def remove_temporaries(folder: Path, names: Collection[str] | None = None) -> None:
    """Remove temporary files that nobody writes any more, such as those of machines that were lost.

    Args:
        folder: Folder, with all below it.
        names: Names of the files that they were to become; None for all.
    """
    for path in folder.rglob(".*.tmp"):
        owner = _OWNER.search(path.name)
        if owner is not None and (names is None or path.name[1 : owner.start()] in names):
            path.unlink(missing_ok=True)


@cache
def _system() -> str:
    """Return a short name of this machine since it started, and of its group of processes."""
    parts = [platform.node()]
    for file in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):
            parts.append(os.readlink(file) if file.endswith("pid") else Path(file).read_text())
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:6]


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # where signal 0 is Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    with suppress(OSError):  # one that has ended stays in the table until its parent asks for it
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][:1]
        return state not in ("Z", "X")
    return True


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name in the folder of `path`, renamed to `path` if the block succeeds.

    The content reaches the disk before the rename, so that a reader (and the folder after a
    crash) sees the old file or the new one and never a part. If the block fails, the temporary
    file is removed and an existing `path` stays as it was. Missing folders are created.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder) / "a.txt") as temporary:
        ...         _ = temporary.write_text("whole")
        ...     [file.name for file in Path(folder).iterdir()]
        ['a.txt']
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(final)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, final)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # a full disk says no name
            error.filename = str(final)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all; what no text has, damaged names hold, is escaped.

    Raises:
        OSError: The file cannot be written; then nothing is left behind.
    """
    # Not text mode: a character that cannot be encoded would end in another error.
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors="backslashreplace"))
