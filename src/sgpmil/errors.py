"""Errors that a user can cause.

Each message is one sentence: what was expected, what was found, where, and what to do. The
command line prints it without a traceback and exits with code 2.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST_REASON = 200
_LONG_WORD = re.compile(r"(\S{100})\S{100,}(\S{100})")


class SgpmilError(Exception):
    """Base of every error that a user can cause.

    A name of thousands of characters, which damaged files hold, is shortened in the middle.

    Example:
        >>> len(str(SgpmilError("Expected " + "x" * 5000)))
        210
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_LONG_WORD.sub(r"\1…\2", message))


class BagError(SgpmilError):
    """A bag, or the file it should come from, is not usable."""


class EmptyBagError(BagError):
    """A bag without instances: a slide on which no tissue was found."""


class LabelError(SgpmilError):
    """A label table is unreadable, or does not fit the bags."""


class SplitError(SgpmilError):
    """A split is unreadable, leaks patients, or does not fit the bags."""


class SettingsError(SgpmilError):
    """An unknown or impossible setting."""


class CheckpointError(SgpmilError):
    """A checkpoint is unreadable, damaged or of another model."""


class TrainingError(SgpmilError):
    """Training cannot continue."""


class PredictionError(SgpmilError):
    """A table of predictions cannot be evaluated."""


class SlideError(SgpmilError):
    """A slide file is unreadable, or lacks information that is needed."""


class EncoderError(SgpmilError):
    """A patch encoder is unknown, or its weights are missing or do not fit."""


class ExtractionError(SgpmilError):
    """Embeddings cannot be extracted into this folder."""


class AnnotationError(SgpmilError):
    """Annotations are unreadable, or do not fit the slides."""


class ExplanationError(SgpmilError):
    """A slide, class or score to explain is missing, or not of this model."""


class RunFolderError(SgpmilError):
    """A run folder exists already, is incomplete or cannot be written."""


class ClusterError(SgpmilError):
    """A cluster does not answer, or has no machine for a job."""


class MissingPartError(SgpmilError):
    """An optional part of the package is not installed."""


@contextmanager
def damage_as(kind: type[SgpmilError], expected: str, where: object, advice: str) -> Iterator[None]:
    """Turn whatever the block raises into one sentence about the file that it reads.

    Libraries answer damaged content with any exception. Errors of this package pass unchanged.

    Args:
        kind: Error to raise.
        expected: What the file should be, such as "a readable table".
        where: The file.
        advice: What to do.

    Raises:
        SgpmilError: The block raised an exception; of the type `kind`.

    Example:
        >>> try:
        ...     with damage_as(BagError, "a number", "a.txt", "Write one."):
        ...         float("x")
        ... except BagError as error:
        ...     print(error)
        Expected a number, but got "could not convert string to float: 'x'" (a.txt). Write one.
    """
    try:
        yield
    except SgpmilError:
        raise
    except Exception as error:
        text = reason_of(error)
        quoted = f'"{text}"' if "'" in text else f"'{text}'"
        raise kind(f"Expected {expected}, but got {quoted} ({where}). {advice}") from error


def reason_of(error: BaseException) -> str:
    """Say in one short line what an exception says.

    Example:
        >>> reason_of(KeyError()), reason_of(ValueError("no   number"))
        ('KeyError', 'no number')
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, RecursionError):
        return "content that is nested too deeply"
    words = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return f"content that does not fit into memory {words}".strip()
    text = words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]} …"
    return text or type(error).__name__
