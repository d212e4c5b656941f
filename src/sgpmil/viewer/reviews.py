"""Verdicts of people on slides, in SQLite beside the run.

A row is the latest verdict of one person on one slide. Each change has a version one higher; who
changes a verdict names the version that was seen, so that nobody overwrites what was not seen.
Every version stays in the history, up to `MOST_VERSIONS` of a slide; where the file becomes
larger than `MOST_BYTES`, the oldest versions that were replaced are deleted first.
"""

import io
import json
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from sgpmil.bags.files import regular_file
from sgpmil.bags.tables import SheetWriter
from sgpmil.errors import SgpmilError

Verdict = Literal["agree", "disagree", "unsure"]
VERDICTS: tuple[str, ...] = get_args(Verdict)

MOST_NOTE, MOST_NAME, MOST_REGIONS, MOST_POINTS = 10_000, 100, 200, 2_000
"""Largest note and name in letters, most regions of a verdict and most corners of a region."""

MOST_VERSIONS, MOST_REVIEWERS = 1_000, 100
"""Most versions of the verdicts on a slide that are kept, and most people who judge one slide."""
MOST_BYTES = 2**30
"""Largest file of verdicts."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS verdicts (
    slide TEXT NOT NULL, reviewer TEXT NOT NULL, version INTEGER NOT NULL, verdict TEXT NOT NULL,
    note TEXT NOT NULL, regions TEXT NOT NULL, predicted TEXT NOT NULL, probability REAL NOT NULL,
    saved TEXT NOT NULL, PRIMARY KEY (slide, reviewer));
CREATE TABLE IF NOT EXISTS history (
    slide TEXT NOT NULL, reviewer TEXT NOT NULL, version INTEGER NOT NULL, verdict TEXT NOT NULL,
    note TEXT NOT NULL, regions TEXT NOT NULL, predicted TEXT NOT NULL, probability REAL NOT NULL,
    saved TEXT NOT NULL, PRIMARY KEY (slide, reviewer, version));
"""
_COLUMNS = "slide, reviewer, version, verdict, note, regions, predicted, probability, saved"


_FORGET = """
DELETE FROM history WHERE rowid IN (
    SELECT rowid FROM history WHERE (? IS NULL OR slide = ?) AND version < (
        SELECT version FROM verdicts
        WHERE verdicts.slide = history.slide AND verdicts.reviewer = history.reviewer)
    ORDER BY rowid LIMIT ?)
"""
"""Deletes the oldest versions that were replaced, of one slide or of all."""


class ReviewError(SgpmilError):
    """Verdicts cannot be read or written."""


Ring = tuple[tuple[float, float], ...]
"""Corners of a region in level-0 pixels (x, y); the last is joined to the first."""


@dataclass(frozen=True, slots=True)
class Review:
    """A verdict of one person on one slide.

    Args:
        slide: Name of the case.
        reviewer: Name of the person.
        version: Number of the change, from 1.
        verdict: The verdict on the prediction.
        note: Words.
        regions: Regions drawn on the slide.
        predicted: Class that the model predicted when the verdict was saved.
        probability: Its probability then.
        saved: Date and time, in UTC.
    """

    slide: str
    reviewer: str
    version: int
    verdict: str
    note: str
    regions: tuple[Ring, ...]
    predicted: str
    probability: float
    saved: str

    def as_json(self) -> dict[str, Any]:
        """Return the review as JSON values."""
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "regions": [[list(point) for point in ring] for ring in self.regions],
        }


class OtherVersionError(ReviewError):
    """A verdict was changed since it was read.

    Args:
        current: The verdict as it is; None where it is gone.
    """

    def __init__(self, current: Review | None) -> None:
        super().__init__(
            "Expected the verdict as you last saw it, but it was changed since. Look at the other "
            "version, then save yours again."
        )
        self.current = current


class Reviews:
    """Verdicts on the slides of a run.

    Args:
        path: File of the database; made when the first verdict is saved.
        read_only: Whether nothing may be saved.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._local = threading.local()

    def save(
        self,
        slide: str,
        reviewer: str,
        version: int,
        verdict: Verdict,
        note: str,
        regions: Sequence[Ring],
        *,
        predicted: str,
        probability: float,
    ) -> Review:
        """Save a verdict.

        Args:
            slide: Name of the case.
            reviewer: Name of the person.
            version: Version that the person last saw; 0 for none.
            verdict: The verdict.
            note: Words.
            regions: Regions drawn on the slide.
            predicted: Class that the model predicts.
            probability: Its probability.

        Raises:
            OtherVersionError: It was changed since; nothing is saved.
            ReviewError: The file cannot be written.
        """
        if self.read_only:
            raise ReviewError("Verdicts cannot be saved: the viewer was started with --read-only.")
        saved = datetime.now(UTC).isoformat(timespec="seconds")
        drawn = tuple(tuple((float(x), float(y)) for x, y in ring) for ring in regions)
        review = Review(
            slide, reviewer, version + 1, verdict, note, drawn, predicted, probability, saved
        )
        row = (
            *(slide, reviewer, version + 1, verdict, note),
            *(json.dumps(drawn), predicted, probability, saved),
        )
        marks = ", ".join("?" * len(row))
        try:
            connection = self._connection()
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                current = self._one(connection, slide, reviewer)
                if (0 if current is None else current.version) != version:
                    raise OtherVersionError(current)
                self._make_room(connection, slide, is_new=current is None)
                connection.execute(
                    f"INSERT OR REPLACE INTO verdicts ({_COLUMNS}) VALUES ({marks})",  # noqa: S608
                    row,
                )
                connection.execute(
                    f"INSERT INTO history ({_COLUMNS}) VALUES ({marks})",  # noqa: S608
                    row,
                )
        except sqlite3.Error as error:
            raise ReviewError(
                f"Could not save the verdict in {self.path} ({error}). Check the disk and the "
                "permissions."
            ) from error
        return review

    def _make_room(self, connection: sqlite3.Connection, slide: str, *, is_new: bool) -> None:
        """Delete old versions where there are too many.

        Raises:
            ReviewError: As many people judge the slide as may, or the file is full of verdicts
                that none has replaced.
        """

        def number(query: str, *values: Any) -> int:
            return int(connection.execute(query, values).fetchone()[0])

        people = number("SELECT COUNT(*) FROM verdicts WHERE slide = ?", slide)
        if is_new and people >= MOST_REVIEWERS:
            raise ReviewError(
                f"Expected verdicts of at most {MOST_REVIEWERS} people on a slide, but got one "
                "more. Save under a name that has one already."
            )
        versions = number("SELECT COUNT(*) FROM history WHERE slide = ?", slide)
        surplus = max(0, versions + 1 - MOST_VERSIONS)
        connection.execute(_FORGET, (slide, slide, surplus))
        while _used_bytes(connection) > MOST_BYTES:
            deleted = connection.execute(_FORGET, (None, None, 100)).rowcount
            if not deleted:
                raise ReviewError(
                    f"Expected verdicts of at most {MOST_BYTES:,} bytes, but {self.path} has as "
                    "many. Export them, and choose another file (--reviews)."
                )

    def of(self, slide: str) -> list[Review]:
        """Return the verdicts of all people on a slide."""
        return self._read("WHERE slide = ? ORDER BY reviewer", (slide,))

    def all(self) -> list[Review]:
        """Return the latest verdicts of all people on all slides."""
        return self._read("ORDER BY slide, reviewer")

    def history(self, slide: str | None = None) -> list[Review]:
        """Return every version of the verdicts on a slide, or on all, the oldest first."""
        rest = "WHERE ? IS NULL OR slide = ? ORDER BY slide, saved, version"
        return self._read(rest, (slide, slide), "history")

    def verdicts(self) -> dict[str, list[str]]:
        """Return the verdicts by slide."""
        found: dict[str, list[str]] = {}
        # Without regions and notes: the worklist asks for them at every change of a filter.
        for slide, verdict in self._rows("slide, verdict", "ORDER BY slide, reviewer"):
            found.setdefault(slide, []).append(verdict)
        return found

    def _read(
        self, rest: str, values: tuple[Any, ...] = (), table: str = "verdicts"
    ) -> list[Review]:
        rows = self._rows(_COLUMNS, rest, values, table)
        try:
            return [_review(row) for row in rows]
        except Exception as error:  # damaged cells fail in many ways
            raise self._unreadable(error) from error

    def _rows(
        self, columns: str, rest: str, values: tuple[Any, ...] = (), table: str = "verdicts"
    ) -> list[tuple[Any, ...]]:
        if not self.path.exists():
            return []
        query = f"SELECT {columns} FROM {table} {rest}"  # noqa: S608
        try:
            return self._connection().execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def _refuse_pipe(self) -> None:
        try:
            regular_file(self.path)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ReviewError:
        return ReviewError(
            f"Expected verdicts in {self.path}, but they cannot be read ({error}). Move the "
            "file away, or restore it."
        )

    def _one(self, connection: sqlite3.Connection, slide: str, reviewer: str) -> Review | None:
        row = connection.execute(
            f"SELECT {_COLUMNS} FROM verdicts WHERE slide = ? AND reviewer = ?",  # noqa: S608
            (slide, reviewer),
        ).fetchone()
        return None if row is None else _review(row)

    def _connection(self) -> sqlite3.Connection:
        """Return the connection of this thread."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            if self.path.exists():
                self._refuse_pipe()
            # An existing file that may not be written is still read.
            place = f"{self.path.resolve().as_uri()}?mode={'ro' if self.read_only else 'rwc'}"
            found = sqlite3.connect(place, uri=True, timeout=30, isolation_level=None)
            if not self.read_only:
                # With the rollback journal, for a write-ahead log loses changes where runs lie on
                # a network drive, and cannot be read in a folder that may not be written.
                found.executescript(_SCHEMA)
            self._local.connection = found
        return found


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _review(row: Sequence[Any]) -> Review:
    slide, reviewer, version, verdict, note, regions, predicted, probability, saved = row
    rings = tuple(tuple((float(x), float(y)) for x, y in ring) for ring in json.loads(regions))
    return Review(
        slide, reviewer, int(version), verdict, note, rings, predicted, float(probability), saved
    )


def reviews_csv(reviews: Iterable[Review], labels: dict[str, str]) -> str:
    """Write verdicts as CSV that is safe to open in a spreadsheet.

    Args:
        reviews: The verdicts.
        labels: Label of each case, where known.
    """
    text = io.StringIO()
    writer = SheetWriter(text)
    names = ("slide", "reviewer", "verdict", "note", "regions", "predicted", "probability")
    writer.writerow([*names, "label", "version", "saved"])
    for one in reviews:
        cells = (one.slide, one.reviewer, one.verdict, one.note, len(one.regions), one.predicted)
        last = (f"{one.probability:.6f}", labels.get(one.slide, ""), one.version, one.saved)
        writer.writerow((*cells, *last))
    return text.getvalue()


def reviews_geojson(reviews: Iterable[Review]) -> str:
    """Write the regions of verdicts as GeoJSON that QuPath imports as annotations."""
    features = [
        {
            "type": "Feature",
            "geometry": {
                "type": "Polygon",
                "coordinates": [[list(point) for point in (*ring, ring[0])]],
            },
            "properties": {
                "objectType": "annotation",
                "name": f"{one.reviewer}: {one.verdict}",
                "classification": {"name": one.verdict},
                "slide": one.slide,
                "reviewer": one.reviewer,
                "verdict": one.verdict,
                "note": one.note,
                "predicted": one.predicted,
                "version": one.version,
                "saved": one.saved,
            },
        }
        for one in reviews
        for ring in one.regions
    ]
    return json.dumps({"type": "FeatureCollection", "features": features}, indent=1)
