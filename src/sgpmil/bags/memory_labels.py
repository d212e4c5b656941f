"""Labels in memory: data frames, series and dictionaries, by the rules of label tables."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from sgpmil.bags.labels import LabelTable, has_column, table_labels
from sgpmil.bags.tables import TextTable
from sgpmil.errors import LabelError


@runtime_checkable
class DataFrame(Protocol):
    """A pandas DataFrame, known by its methods so that pandas is not imported."""

    @property
    def columns(self) -> Any:
        """Names of the columns."""
        ...

    @property
    def index(self) -> Any:
        """Names of the rows."""
        ...

    def itertuples(self, index: bool = ..., name: Any = ...) -> Any:
        """Yield the rows."""
        ...


@runtime_checkable
class Series(Protocol):
    """A pandas Series, known by its methods so that pandas is not imported."""

    @property
    def index(self) -> Any:
        """Names of the rows."""
        ...

    def tolist(self) -> list[Any]:
        """Return the values."""
        ...

    def to_frame(self, name: Any = ...) -> Any:
        """Return a data frame of one column."""
        ...


MemoryLabels: TypeAlias = DataFrame | Series | Mapping[Any, Any]
"""A DataFrame, a Series or a dictionary with the label of each slide."""


def memory_labels(
    labels: MemoryLabels,
    *,
    slide_column: str | None = None,
    label_column: str | None = None,
    case_column: str | None = None,
) -> LabelTable:
    """Make a table of labels of what is in memory.

    Rows without a label (None, NaN, an empty text) are left out, as those of a file are. Where all
    labels are numbers, 1.0 is the class 1.

    Args:
        labels: A DataFrame with columns of slides, labels and perhaps patients, whose slides may
            also be its index; a Series of labels with the slides as its index; or a dictionary
            from slide to label.
        slide_column: Column of slide names, where its name is not a usual one.
        label_column: Column of labels, where its name is not a usual one.
        case_column: Column of patients, where its name is not a usual one. Without one, each
            slide is its own case.

    Raises:
        LabelError: A column is not found, a slide is named twice, or no slide has a label.

    Example:
        >>> memory_labels({"a.svs": 1.0, "b": 0}).labels
        ('1', '0')
    """
    if isinstance(labels, Mapping):
        return table_labels(_dictionary_table(labels))
    if not isinstance(labels, DataFrame | Series):
        raise LabelError(
            "Expected labels as a file, a pandas DataFrame or Series, or a dictionary from slide "
            f"to label, but got a {type(labels).__name__}. Give one of these."
        )
    frame = labels if isinstance(labels, DataFrame) else labels.to_frame(label_column or "label")
    table = _frame_table(frame, slide_column)
    return table_labels(
        table, slide_column=slide_column, label_column=label_column, case_column=case_column
    )


def _dictionary_table(labels: Mapping[Any, Any]) -> TextTable:
    odd = next((value for value in labels.values() if not _is_scalar(value)), None)
    if odd is not None:
        raise LabelError(
            f"Expected a dictionary from slide to label, but got a {type(odd).__name__} for a "
            "label. Give one text or number a slide; patients need a DataFrame."
        )
    rows = tuple((as_text(slide), as_text(label)) for slide, label in labels.items())
    return TextTable(Path("the dictionary"), ("slide_id", "label"), rows)


def _frame_table(frame: DataFrame, slide_column: str | None) -> TextTable:
    where = Path("the DataFrame")
    columns = tuple(as_text(name) for name in frame.columns)
    rows = tuple(tuple(map(as_text, row)) for row in frame.itertuples(index=False, name=None))
    table = TextTable(where, columns, rows)
    if has_column(table, "slide", slide_column):
        return table
    # The slides are the index, if anything. A table has one by one what an index has in levels.
    names = [as_text(name) for name in frame.index.names]
    given = [slide_column or "slide_id"] if names == [""] else names
    levels = [map(as_text, frame.index.get_level_values(level)) for level in range(len(names))]
    indexed = tuple((*above, *row) for *above, row in zip(*levels, rows, strict=True))
    with_index = replace(table, columns=(*given, *columns), rows=indexed)
    is_named = names != [""] or not _is_counter(frame.index)
    return with_index if is_named and has_column(with_index, "slide", slide_column) else table


def _is_counter(index: Any) -> bool:
    """Return whether an index just counts rows, as pandas makes it where none is given."""
    return list(index) == list(range(len(index)))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str) or not hasattr(value, "__len__")


def as_text(value: Any) -> str:
    """Return a value as the cell of a table holds it; empty where there is none."""
    if value is None or str(value) in ("nan", "<NA>", "NaT"):
        return ""
    if isinstance(value, float) and value.is_integer():
        # Whole numbers beside a missing one are floats in pandas: 7.0 is the slide 7.
        return str(int(value))
    return " ".join(str(value).split())
