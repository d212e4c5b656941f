"""The folder that an explanation leaves on disk.

::

    explanation/
      explanation.json                    settings, and a digest of the predictions
      slides.csv                          the test slides, the least certain first
      limits.json                         limits of the colours that all maps share
      maps/<slide>.png                    scores of the patches, with their deviations
      patches/<slide>.png, <slide>.csv    the patches to look at
      comparison/<slide>.png              several models on one slide
      prototypes/fold-<k>/                prototypes.npz (the data), prototypes.csv,
                                          prototypes.png, label-map-<slide>.png
      geojson/, tables/, tiff/, tiatoolbox/   files for other programs

Every file is whole or absent: a stopped explanation resumes where it left off.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sgpmil.bags.files import file_name, read_json, remove_leftovers, write_text
from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import SCORES
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.explanation.map_layers import MapLimits

ExportKind = Literal["geojson", "csv", "parquet", "tiff", "tiatoolbox"]
"""Files for other programs: tiles of QuPath, tables, maps of numbers, overlay of TIAToolbox."""

_RECORD = "explanation.json"
_LIMITS = "limits.json"
_PARTS = (
    *("maps", "patches", "comparison", "prototypes"),
    *("geojson", "tables", "tiff", "tiatoolbox"),
)
_EXPORTS: dict[ExportKind, tuple[str, str]] = {
    "geojson": ("geojson", ".geojson"),
    "csv": ("tables", ".csv"),
    "parquet": ("tables", ".parquet"),
    "tiff": ("tiff", ".ome.tiff"),
    "tiatoolbox": ("tiatoolbox", ".geojson"),
}


@dataclass(frozen=True, slots=True)
class ExplanationFolder:
    """Places of the files of an explanation.

    Args:
        path: The folder.
    """

    path: Path

    @property
    def slides(self) -> Path:
        """Table of the slides."""
        return self.path / "slides.csv"

    def map(self, name: str) -> Path:
        """Map of a slide."""
        return self.path / "maps" / f"{file_name(name)}.png"

    def patches(self, name: str) -> tuple[Path, Path]:
        """Key patches of a slide: the figure and the table."""
        place = self.path / "patches"
        return place / f"{file_name(name)}.png", place / f"{file_name(name)}.csv"

    def comparison(self, name: str) -> Path:
        """Several models on one slide."""
        return self.path / "comparison" / f"{file_name(name)}.png"

    def prototypes(self, fold: str) -> tuple[Path, Path]:
        """Prototypes of a fold's model: the figure and the table."""
        place = self._prototypes(fold)
        return place / "prototypes.png", place / "prototypes.csv"

    def prototype_data(self, fold: str) -> Path:
        """Prototypes of a fold's model as data (see `read_prototypes`)."""
        return self._prototypes(fold) / "prototypes.npz"

    def label_map(self, fold: str, slide_id: str) -> Path:
        """Map of the prototypes on a slide."""
        return self._prototypes(fold) / f"label-map-{file_name(slide_id)}.png"

    def _prototypes(self, fold: str) -> Path:
        return self.path / "prototypes" / f"fold-{file_name(fold)}"

    def export(self, kind: ExportKind, name: str) -> Path:
        """A slide's file for another program."""
        folder, suffix = _EXPORTS[kind]
        return self.path / folder / f"{file_name(name)}{suffix}"

    def read_record(self) -> dict[str, Any] | None:
        """Read the settings of the explanation that lies here; None where none can be read."""
        return _read_json(self.path / _RECORD)

    def read_limits(self) -> MapLimits | None:
        """Read the limits of the colours; None where none can be read."""
        try:
            return MapLimits(**(_read_json(self.path / _LIMITS) or {}))
        except TypeError:
            return None

    def write_limits(self, limits: MapLimits) -> None:
        """Write the limits of the colours."""
        write_text(self.path / _LIMITS, json.dumps(asdict(limits), indent=2) + "\n")


def open_explanation(
    path: Path, settings: Mapping[str, Any], *, overwrite: bool = False
) -> ExplanationFolder:
    """Start an explanation, or resume one of the same settings.

    Args:
        path: Its folder.
        settings: Everything that decides what its files hold, as JSON values.
        overwrite: Replace an explanation of other settings, and write all files again.

    Raises:
        ExplanationError: The folder is a file or holds something else, or an explanation of other
            settings.
    """
    wanted = json.loads(json.dumps(dict(settings), default=str))
    if path.is_file():
        raise ExplanationError(f"Expected a folder to write to, but {path} is a file.")
    if path.exists() and any(path.iterdir()):
        if not (path / _RECORD).exists():
            raise ExplanationError(
                f"Expected an explanation or an empty folder at {path}, but it holds something "
                "else. Name another with `out`."
            )
        if overwrite:
            (path / _LIMITS).unlink(missing_ok=True)
            for part in _PARTS:
                shutil.rmtree(path / part, ignore_errors=True)
        else:
            _refuse_others(path, wanted)
    remove_leftovers(path)
    write_text(path / _RECORD, json.dumps(wanted, indent=2, ensure_ascii=False) + "\n")
    return ExplanationFolder(path)


def predictions_digest(tables: Iterable[PredictionTable]) -> str:
    """Compute a digest that changes with the predictions of a run."""
    digest = hashlib.sha256()
    for table in tables:
        for prediction in table.predictions:
            digest.update(f"{prediction.slide_id}\n{prediction.label}\n".encode())
            digest.update(prediction.probs.tobytes())
            digest.update(prediction.std.tobytes())
            scores = prediction.instances
            if scores is None:
                continue
            for kind in scores.kinds:
                for name in dict.fromkeys((SCORES[kind].array, f"{kind}_std")):
                    array = getattr(scores, name, None)
                    digest.update(b"" if array is None else array.tobytes())
    return digest.hexdigest()[:16]


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _refuse_others(path: Path, wanted: Mapping[str, Any]) -> None:
    try:
        found = read_json(path / _RECORD)
        differing = [name for name in wanted if found.get(name) != wanted[name]]
    except (OSError, ValueError, AttributeError) as error:
        raise ExplanationError(
            f"Expected what an explanation was made of in {path / _RECORD}, but it cannot be read "
            f"({error}). Make it again with `overwrite=True`."
        ) from error
    if "predictions" in differing:
        raise ExplanationError(
            f"{path} explains other predictions: the run has changed since. Make it again with "
            "`overwrite=True`."
        )
    if differing:
        name = differing[0]
        raise ExplanationError(
            f"{path} holds an explanation of other settings ({name} is {found.get(name)!r} there, "
            f"and {wanted[name]!r} here). Replace it with `overwrite=True`, or name another folder "
            "with `out`."
        )
