"""Labels of slides, and the patients the slides come from.

Tables of labels come from many tools. Columns are found by their usual names, and slide names
may carry the suffix of a slide or bag file.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from sgpmil.bags.files import refuse_unfit_names
from sgpmil.bags.label_kind import doubt_of_classes, plain_numbers
from sgpmil.bags.readers.numpy_files import load_npy
from sgpmil.bags.tables import TextTable, listed, read_table
from sgpmil.bags.target import ClassTarget, Target
from sgpmil.errors import LabelError, damage_as

_What = Literal["slide", "case", "label"]

# The surest name first.
_USUAL: dict[_What, tuple[str, ...]] = {
    "slide": (
        "slide_id",
        "slide",
        "slide_name",
        "wsi_id",
        "wsi",
        "wsi_name",
        "bag_name",
        "bag_id",
        "bag",
        "image_id",
        "image",
        "image_name",
        "filename",
        "file_name",
        "file",
        "slide_path",
        "path",
    ),
    "case": (
        "case_id",
        "case",
        "patient_id",
        "patient",
        "patientid",
        "case_submitter_id",
        "submitter_id",
        "subject_id",
        "subject",
        "donor_id",
        "donor",
    ),
    "label": (
        "label",
        "slide_label",
        "bag_label",
        "target",
        "class",
        "category",
        "diagnosis",
        "y",
    ),
}
_FOLD = re.compile(r"(fold|split)(_?\d+)?")

# Only these are removed: other text after a dot is part of a name (TCGA's are full of dots).
_SUFFIX = re.compile(
    r"\.(svs|tiff?|ndpi|mrxs|scn|vms|vmu|bif|svslide|dcm|czi|isyntax|qptiff|vsi|png|jpe?g|"
    r"h5|hdf5|pth?|np[yz])",
    re.IGNORECASE,
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
        labels: Label of each slide as text: the name of its class.
        column: Name of the column that the labels come from, if any.
        columns: Columns that labels, slides and patients come from, in a few words; empty where
            there is no table.

    Raises:
        LabelError: The lengths differ, a slide is named twice, or a name cannot be a file's.

    Example:
        >>> LabelTable(("a", "b"), ("p", "q"), ("normal", "tumor")).row("b").label
        'tumor'
    """

    slide_ids: tuple[str, ...]
    case_ids: tuple[str, ...]
    labels: tuple[str, ...]
    column: str = ""
    columns: str = ""
    _position: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = (len(self.slide_ids), len(self.case_ids), len(self.labels))
        if len(set(sizes)) > 1:
            raise LabelError(
                f"Expected a case and a label for each slide, but got {sizes[0]} slides, "
                f"{sizes[1]} cases and {sizes[2]} labels."
            )
        _refuse_duplicates(self.slide_ids, "")
        refuse_unfit_names(self.slide_ids, LabelError, "the labels")
        position = {slide_id: row for row, slide_id in enumerate(self.slide_ids)}
        object.__setattr__(self, "_position", position)

    def __len__(self) -> int:
        return len(self.slide_ids)

    def __contains__(self, slide_id: object) -> bool:
        return slide_id in self._position

    def __iter__(self) -> Iterator[LabelRow]:
        return map(LabelRow, self.slide_ids, self.case_ids, self.labels)

    @property
    def target(self) -> Target:
        """Target of the labels: classes, in the order of `class_order`."""
        return ClassTarget.of(self.labels)

    @property
    def doubt(self) -> str:
        """Why the labels do not look like classes; empty where they do."""
        return doubt_of_classes(self.labels, self.column)

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

    def subset(self, slide_ids: Sequence[str]) -> "LabelTable":
        """Return the table of some slides, in the order given.

        Raises:
            LabelError: A slide is not in the table.
        """
        rows = [self.row(slide_id) for slide_id in slide_ids]
        return replace(
            self,
            slide_ids=tuple(row.slide_id for row in rows),
            case_ids=tuple(row.case_id for row in rows),
            labels=tuple(row.label for row in rows),
        )


def read_labels(
    path: Path,
    *,
    slide_column: str | None = None,
    label_column: str | None = None,
    case_column: str | None = None,
    slide_table: Path | None = None,
) -> LabelTable:
    """Read a table of labels.

    Rows without a label (an empty cell, NA, NaN) are left out; reading bags then reports their
    slides as unlabelled. Where all labels are numbers, 1.0 is the class 1.

    Args:
        path: CSV, TSV or XLSX table; or torchmil's folder of labels, a `.npy` file a slide.
        slide_column: Column of slide names, where its name is not a usual one.
        label_column: Column of labels, where its name is not a usual one.
        case_column: Column of patients, where its name is not a usual one. Without one, each
            slide is its own case.
        slide_table: Table of the slides of each patient (STAMP's), where labels are given to
            patients.

    Raises:
        LabelError: The table is unreadable, a column is not found, or a slide is named twice.
    """
    if path.is_dir():
        with damage_as(LabelError, "a folder of labels", path, "Write them again."):
            return replace(table_labels(_folder_table(path)), columns="")
    return table_labels(
        read_table(path),
        None if slide_table is None else read_table(slide_table),
        slide_column=slide_column,
        label_column=label_column,
        case_column=case_column,
    )


def table_labels(
    table: TextTable,
    slide_table: TextTable | None = None,
    *,
    slide_column: str | None = None,
    label_column: str | None = None,
    case_column: str | None = None,
) -> LabelTable:
    """Take the labels out of a table; the arguments are those of `read_labels`.

    Raises:
        LabelError: A column is not found, or a slide is named twice.
    """
    column = find_label_column(table, label_column, slide_column, case_column)
    labels = table.column(column)
    if slide_table is not None:
        label_of = _patient_labels(table, labels, case_column)
        table = slide_table
        cases = table.column(find_column(table, "case", case_column))
        labels = tuple(label_of.get(case, "") for case in cases)
    slide_column = find_column(table, "slide", slide_column)
    slides = [clean_slide_id(cell) for cell in table.column(slide_column)]
    cases, patients = tuple(slides), "each slide its own"
    if case_column is not None or _usual_column(table, "case") is not None:
        case_column = find_column(table, "case", case_column)
        cases, patients = table.column(case_column), f"'{case_column}'"
    found = _as_table(list(map(LabelRow, slides, cases, labels)), table.path, column)
    columns = f"labels '{column}', slides '{slide_column}', patients {patients}"
    return replace(found, columns=columns)


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
    return name.removesuffix(suffix) if _SUFFIX.fullmatch(suffix) else name


def has_column(table: TextTable, what: _What, given: str | None = None) -> bool:
    """Return whether `find_column` finds a column."""
    return (_usual_column(table, what) if given is None else given.strip()) in table.columns


def find_column(table: TextTable, what: _What, given: str | None = None) -> str:
    """Return the name of a column as the table spells it.

    Args:
        table: The table.
        what: The content of the column.
        given: The user's name for it; found by the usual names where not given.

    Raises:
        LabelError: The column is not found.
    """
    found = _usual_column(table, what) if given is None else given.strip()
    if found in table.columns:
        return str(found)
    columns = f"but got the columns {', '.join(table.columns)} ({table.path})."
    if given is not None:
        raise LabelError(f"Expected a column '{found}', {columns} Correct `{what}_column`.")
    hint = (
        " Where labels are given to patients, add `slide_table`."
        if what == "slide" and _usual_column(table, "case") is not None
        else ""
    )
    raise LabelError(
        f"Expected a column of {what}s such as '{_USUAL[what][0]}', {columns} "
        f"Name it with `{what}_column`.{hint}"
    )


def find_label_column(
    table: TextTable,
    given: str | None = None,
    slide_column: str | None = None,
    case_column: str | None = None,
) -> str:
    """Return the column of labels: one of a usual name, or the only one that is left.

    Raises:
        LabelError: The column is not found, or there are several to choose from.
    """
    if given is not None:
        return find_column(table, "label", given)
    usual = _usual_column(table, "label")
    taken = {*_USUAL["slide"], *_USUAL["case"]}
    left = [
        name
        for key, name in _by_key(table).items()
        if key not in taken and name not in (slide_column, case_column) and not _FOLD.fullmatch(key)
    ]
    if usual is not None or len(left) == 1:
        return usual or left[0]
    raise LabelError(
        f"Expected a column 'label', but got the columns {', '.join(table.columns)} "
        f"({table.path}). Name the one to learn with `label_column`."
    )


def _folder_table(folder: Path) -> TextTable:
    """Read a folder of labels, an array of one number a slide."""
    rows = []
    for path in sorted(folder.glob("*.npy")):
        array = load_npy(path)
        if array.size != 1 or array.dtype.kind not in "iufb":
            raise LabelError(
                f"Expected one number as the label of a slide, but got shape {array.shape} of "
                f"{array.dtype} ({path}). Give the number of the slide's class."
            )
        rows.append((path.stem, f"{array.item():g}"))
    if not rows:
        raise LabelError(
            f"Expected a table of labels, or a folder of .npy files, but got a folder without any "
            f"({folder}). Give the table itself."
        )
    return TextTable(folder, ("slide_id", "label"), tuple(rows))


def _usual_column(table: TextTable, what: _What) -> str | None:
    by_key = _by_key(table)
    return next((by_key[name] for name in _USUAL[what] if name in by_key), None)


def _by_key(table: TextTable) -> dict[str, str]:
    """Index the named columns by lower case and underscores; the first of equal ones wins."""
    named = [name for name in table.columns if name]
    return {re.sub(r"[\s\-.]+", "_", name.casefold()): name for name in reversed(named)}


def _patient_labels(
    table: TextTable, labels: Sequence[str], case_column: str | None
) -> dict[str, str]:
    label_of: dict[str, str] = {}
    cases = table.column(find_column(table, "case", case_column))
    for case, label in zip(cases, labels, strict=True):
        if label_of.setdefault(case, label) != label:
            raise LabelError(
                f"Expected one label a patient, but '{case}' has '{label_of[case]}' and "
                f"'{label}' ({table.path}). Keep one row of it."
            )
    return label_of


def _as_table(rows: list[LabelRow], path: Path, column: str) -> LabelTable:
    rows = [row for row in rows if row.slide_id]
    _refuse_duplicates([row.slide_id for row in rows], f" ({path})")
    known = [row for row in rows if row.label.casefold() not in _UNKNOWN]
    if not known:
        raise LabelError(
            f"Expected at least one slide with a label, but got none in {len(rows)} rows ({path}). "
            "Fill the column of labels, or name another with `label_column`."
        )
    return LabelTable(
        slide_ids=tuple(row.slide_id for row in known),
        case_ids=tuple(row.case_id or row.slide_id for row in known),
        labels=plain_numbers([row.label for row in known]),
        column=column,
    )


def _refuse_duplicates(slide_ids: Sequence[str], where: str) -> None:
    counts = [(slide_id, n) for slide_id, n in Counter(slide_ids).items() if n > 1]
    if counts:
        shown = listed([f"{slide_id} ({n} times)" for slide_id, n in counts])
        raise LabelError(
            f"Expected each slide once, but got {len(counts)} named again: {shown}{where}. "
            "Keep one row of each."
        )
