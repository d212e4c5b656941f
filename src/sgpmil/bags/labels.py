"""The label of each slide and the patient it comes from.

Tables of labels come from many tools, so the columns are found by their usual names, and ids
may carry the suffix of a slide or bag file.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sgpmil.bags.label_columns import CASE_COLUMNS, SLIDE_COLUMNS, find_column, find_label_column
from sgpmil.bags.tables import TextTable, listed, read_table
from sgpmil.errors import LabelError

__all__ = ["LabelRow", "LabelTable", "clean_slide_id", "read_labels"]

# Only these are cut off: what else follows a dot is part of a name (TCGA's are full of dots).
_SUFFIXES = frozenset(
    [
        ".svs",
        ".tif",
        ".tiff",
        ".ndpi",
        ".mrxs",
        ".scn",
        ".vms",
        ".vmu",
        ".bif",
        ".svslide",
        ".dcm",
        ".czi",
        ".isyntax",
        ".qptiff",
        ".vsi",
        ".png",
        ".jpg",
        ".jpeg",
        ".h5",
        ".hdf5",
        ".pt",
        ".pth",
        ".npy",
        ".npz",
    ]
)
_UNKNOWN = frozenset({"", "nan", "na", "n/a", "#n/a"})


@dataclass(frozen=True, slots=True)
class LabelRow:
    """Label and case of one slide."""

    slide_id: str
    case_id: str
    label: str


@dataclass(frozen=True, slots=True)
class LabelTable:
    """Labels and cases of slides.

    Args:
        slide_ids: Name of each slide, each once.
        case_ids: Patient each slide comes from.
        labels: Name of each slide's class.

    Raises:
        LabelError: The lengths differ, or a slide is named twice.

    Example:
        >>> LabelTable(("a", "b"), ("p", "q"), ("normal", "tumor")).row("b").label
        'tumor'
    """

    slide_ids: tuple[str, ...]
    case_ids: tuple[str, ...]
    labels: tuple[str, ...]
    _position: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = (len(self.slide_ids), len(self.case_ids), len(self.labels))
        if len(set(sizes)) > 1:
            raise LabelError(
                f"Expected a case and a label for each slide, but got {sizes[0]} slides, "
                f"{sizes[1]} cases and {sizes[2]} labels."
            )
        _refuse_duplicates(self.slide_ids, "")
        position = {slide_id: row for row, slide_id in enumerate(self.slide_ids)}
        object.__setattr__(self, "_position", position)

    def __len__(self) -> int:
        return len(self.slide_ids)

    def __contains__(self, slide_id: object) -> bool:
        return slide_id in self._position

    def __iter__(self) -> Iterator[LabelRow]:
        return map(LabelRow, self.slide_ids, self.case_ids, self.labels)

    def row(self, slide_id: str) -> LabelRow:
        """Return label and case of a slide.

        Raises:
            LabelError: The slide is not in the table.
        """
        if slide_id not in self._position:
            raise LabelError(
                f"Expected a slide of the label table, but got '{slide_id}', which is not among "
                f"its {len(self)} slides. Add it to the table."
            )
        row = self._position[slide_id]
        return LabelRow(slide_id, self.case_ids[row], self.labels[row])


def read_labels(
    path: Path,
    *,
    slide_column: str | None = None,
    label_column: str | None = None,
    case_column: str | None = None,
    slide_table: Path | None = None,
) -> LabelTable:
    """Read a table of labels.

    Rows without a label are left out; reading bags then reports their slides as unlabelled.

    Args:
        path: CSV, TSV or XLSX table.
        slide_column: Column of slide names, where its name is not a usual one.
        label_column: Column of labels, where its name is not a usual one.
        case_column: Column of patients, where its name is not a usual one. Without one, each
            slide is its own case.
        slide_table: Table of the slides of each patient (STAMP's), where labels are given to
            patients.

    Raises:
        LabelError: The table is unreadable, a column is not found, or a slide is named twice.
    """
    table = read_table(path)
    label_name = find_label_column(table, label_column, slide_column, case_column)
    if slide_table is not None:
        return _through_patients(
            table, read_table(slide_table), label_name, slide_column, case_column
        )
    slide_name = find_column(table, "slide", SLIDE_COLUMNS, slide_column)
    case_name = find_column(table, "case", CASE_COLUMNS, case_column, required=False)
    slides = [clean_slide_id(cell) for cell in table.column(slide_name or "")]
    cases = slides if case_name is None else table.column(case_name)
    rows = zip(slides, cases, table.column(label_name), strict=True)
    return _as_table([LabelRow(*row) for row in rows], path)


def clean_slide_id(text: str) -> str:
    """Return the slide a cell names: without folder, and without a known file suffix.

    Example:
        >>> clean_slide_id("batch1/TCGA-22-1017.9562FE79.svs")
        'TCGA-22-1017.9562FE79'
        >>> clean_slide_id("TCGA-22-1017.9562FE79")
        'TCGA-22-1017.9562FE79'
    """
    name = PurePosixPath(text.strip().replace("\\", "/")).name
    suffix = PurePosixPath(name).suffix
    return name.removesuffix(suffix) if suffix.lower() in _SUFFIXES else name


def _through_patients(
    patients: TextTable,
    slides: TextTable,
    label_name: str,
    slide_column: str | None,
    case_column: str | None,
) -> LabelTable:
    """Give each slide of a slide table the label of its patient."""
    case_name = find_column(patients, "case", CASE_COLUMNS, case_column)
    label_of: dict[str, str] = {}
    for case, label in zip(
        patients.column(case_name or ""), patients.column(label_name), strict=True
    ):
        if label_of.setdefault(case, label) != label:
            raise LabelError(
                f"Expected one label a patient, but '{case}' has '{label_of[case]}' and "
                f"'{label}' ({patients.path}). Keep one row of it."
            )
    case_name = find_column(slides, "case", CASE_COLUMNS, case_column)
    slide_name = find_column(slides, "slide", SLIDE_COLUMNS, slide_column)
    pairs = zip(slides.column(case_name or ""), slides.column(slide_name or ""), strict=True)
    rows = [LabelRow(clean_slide_id(slide), case, label_of.get(case, "")) for case, slide in pairs]
    return _as_table(rows, slides.path)


def _as_table(rows: list[LabelRow], path: Path) -> LabelTable:
    rows = [row for row in rows if row.slide_id]
    _refuse_duplicates([row.slide_id for row in rows], f" ({path})")
    known = [row for row in rows if row.label.casefold() not in _UNKNOWN]
    if not known:
        raise LabelError(
            f"Expected at least one slide with a label, but got none in {len(rows)} rows ({path}). "
            "Fill the column of labels, or name another with --label-column."
        )
    return LabelTable(
        slide_ids=tuple(row.slide_id for row in known),
        case_ids=tuple(row.case_id or row.slide_id for row in known),
        labels=tuple(row.label for row in known),
    )


def _refuse_duplicates(slide_ids: tuple[str, ...] | list[str], where: str) -> None:
    counts = [(slide_id, n) for slide_id, n in Counter(slide_ids).items() if n > 1]
    if counts:
        shown = listed([f"{slide_id} ({n} times)" for slide_id, n in counts])
        raise LabelError(
            f"Expected each slide once, but got {len(counts)} named again: {shown}{where}. "
            "Keep one row of each."
        )
