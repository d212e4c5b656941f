"""What a folder of phantoms holds, and where: ``phantoms.json`` and the names of its files."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from sgpmil.bags.files import write_text
from sgpmil.errors import SettingsError, SlideError
from sgpmil.phantoms.settings import PhantomSettings

__all__ = ["PhantomRecord", "PhantomSlide", "claim_folder"]

_NAME = "phantoms.json"
_DRAWING = 1
"""Counts up when the same settings give other pixels, so that they are not mixed in a folder."""
_MOST_SLIDES = 100_000


@dataclass(frozen=True, slots=True)
class PhantomSlide:
    """One slide of a folder.

    Args:
        slide_id: Its name.
        case_id: Name of its patient.
        seed: Seed of its scene.
        settings: What it is like.
    """

    slide_id: str
    case_id: str
    seed: int
    settings: PhantomSettings

    @property
    def label(self) -> str:
        """``tumour`` or ``normal``."""
        return "tumour" if self.settings.tumour_share > 0 else "normal"

    def file(self, folder: Path) -> Path:
        """Give the slide's file in a folder."""
        return folder / "slides" / f"{self.slide_id}.tiff"

    def truth(self, folder: Path, kind: str) -> Path:
        """Give a file of what is known: `kind` is ``annotations``, ``tissue`` or ``regions``."""
        return folder / kind / f"{self.slide_id}.geojson"


@dataclass(frozen=True, slots=True)
class PhantomRecord:
    """How the phantoms of a folder were made.

    Args:
        num_slides: Number of slides.
        seed: Seed of them all.
        positive_share: Share of slides with a tumour.
        settings: What they are like.
        drawing: Version of the drawing.

    Raises:
        SettingsError: A value is out of range.
    """

    num_slides: int
    seed: int
    positive_share: float
    settings: PhantomSettings
    drawing: int = _DRAWING

    def __post_init__(self) -> None:
        if not 1 <= self.num_slides <= _MOST_SLIDES:
            raise SettingsError(
                f"Expected 1 to {_MOST_SLIDES:,} slides, but got {self.num_slides}. "
                "Change --num-slides."
            )
        if not 0 <= self.positive_share <= 1:
            raise SettingsError(
                f"Expected a share of slides with a tumour from 0 to 1, but got "
                f"{self.positive_share:g}. Change --positive-share."
            )
        if self.seed < 0:
            raise SettingsError(
                f"Expected a seed of 0 or more, but got {self.seed}. Change --seed."
            )

    def slides(self) -> tuple[PhantomSlide, ...]:
        """Give the slides. The first ones stay the same when more are asked for.

        Example:
            >>> record = PhantomRecord(4, 0, 0.5, PhantomSettings())
            >>> [slide.label for slide in record.slides()]
            ['normal', 'tumour', 'normal', 'tumour']
        """
        return tuple(self._slide(number) for number in range(self.num_slides))

    def _slide(self, number: int) -> PhantomSlide:
        share = self.positive_share
        # Positive where the running total passes the next whole number; to nine digits, for
        # 0.1 + 0.2 is not 0.3.
        positive = int(round((number + 1) * share, 9)) > int(round(number * share, 9))
        seed = np.random.SeedSequence([self.seed, number]).generate_state(1, np.uint32)[0]
        return PhantomSlide(
            slide_id=f"phantom-{number + 1:04d}",
            case_id=f"case-{number + 1:04d}",
            seed=int(seed),
            settings=self.settings if positive else replace(self.settings, tumour_share=0.0),
        )

    def write(self, folder: Path) -> None:
        """Write it into a folder.

        Raises:
            OSError: It cannot be written.
        """
        write_text(folder / _NAME, json.dumps(asdict(self), indent=2) + "\n")


def claim_folder(folder: Path, record: PhantomRecord, *, overwrite: bool) -> None:
    """Make a folder ready for phantoms: new, the same ones to be completed, or others replaced.

    Args:
        folder: The folder.
        record: What it is to hold.
        overwrite: Whether phantoms that are there are removed first.

    Raises:
        SlideError: It holds something else.
        OSError: It cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or _is_foreign(folder)):
        raise SlideError(
            f"Expected a new folder, or one of phantoms, at '{folder}', but it holds something "
            "else. Choose another."
        )
    before = _read(folder)
    if before is not None and overwrite:
        for slide in before.slides():
            slide.file(folder).unlink(missing_ok=True)
            for kind in ("annotations", "tissue", "regions"):
                slide.truth(folder, kind).unlink(missing_ok=True)
        (folder / "labels.csv").unlink(missing_ok=True)
    elif before is not None:
        difference = _difference(before, record)
        if difference:
            raise SlideError(
                f"Expected a new folder, or phantoms of the same settings, at '{folder}', but got "
                f"{difference}. Choose another, or replace them with --overwrite."
            )
    record.write(folder)


def _is_foreign(folder: Path) -> bool:
    return any(folder.iterdir()) and not (folder / _NAME).exists()


def _read(folder: Path) -> PhantomRecord | None:
    path = folder / _NAME
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        settings = content.pop("settings")
        settings["size"] = tuple(settings["size"])
        return PhantomRecord(settings=PhantomSettings(**settings), **content)
    except (ValueError, TypeError, KeyError, AttributeError, SettingsError) as error:
        raise SlideError(
            f"Expected the settings of phantoms in '{path}', but it cannot be read ({error}). "
            "Remove the folder, or choose another."
        ) from error


def _difference(before: PhantomRecord, now: PhantomRecord) -> str:
    """Name the first setting that differs; empty where `before` can become `now`."""
    old, new = ({**asdict(r), **asdict(r.settings)} for r in (before, now))
    for name in new:
        if name not in ("num_slides", "settings") and old[name] != new[name]:
            return f"phantoms of {name.replace('_', ' ')} {_shown(old[name])}"
    if before.num_slides > now.num_slides:
        return f"{before.num_slides} phantoms, more than the {now.num_slides} asked for"
    return ""


def _shown(value: object) -> str:
    return "×".join(map(str, value)) if isinstance(value, tuple) else str(value)
