"""Bags from AnnData and to it: a row of AnnData is an instance, and `obs` says of which slide.

======================  =========================================================
AnnData                 bags
======================  =========================================================
``X``, or an ``obsm``   features
``obs``                 slide, patient and label, found by the usual names of columns
``obs``                 ``instance_label`` and ``patch_size``, where present
``obsm["spatial"]``     top-left corner of each instance in level-0 pixels
``uns["tile_spec"]``    side of an instance, as LazySlide writes it
======================  =========================================================
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.labels import clean_slide_id, find_column, has_column, table_labels
from sgpmil.bags.memory_labels import MemoryLabels, as_text, memory_labels
from sgpmil.bags.reading import label_bags
from sgpmil.bags.tables import TextTable, listed
from sgpmil.errors import BagError, LabelError, MissingPartError
from sgpmil.installation import install_command

if TYPE_CHECKING:
    import anndata

_OBS = Path("obs of the AnnData")


def from_anndata(
    data: Any,
    labels: MemoryLabels | None = None,
    *,
    features: str | None = None,
    coords: str = "spatial",
    slide_column: str | None = None,
    label_column: str | None = None,
    case_column: str | None = None,
    classes: Sequence[str] | None = None,
) -> BagDataset:
    """Make bags of AnnData; the arguments are those of `BagDataset.from_anndata`."""
    tables = data if isinstance(data, Mapping) else _by_slide(data, slide_column)
    parts = {clean_slide_id(as_text(name)): one for name, one in tables.items()}
    if len(parts) < len(tables):
        raise BagError(
            f"Expected slides of different names, but got {listed([str(n) for n in tables])}. "
            "Rename some."
        )
    bags = BagDataset.from_arrays(
        {slide_id: _features(one, features, slide_id) for slide_id, one in parts.items()},
        coords=_known(parts, lambda one, _: _coords(one, coords)),
        instance_labels=_known(parts, lambda one, _: _instance_labels(one)),
        patch_size=_known(parts, _patch_size),
    )
    if labels is not None:
        return label_bags(bags, memory_labels(labels), "the labels", classes)
    rows = tuple(
        (s, _one(one, "label", label_column, s), _one(one, "case", case_column, s))
        for s, one in parts.items()
    )
    known = [label for _, label, _ in rows if label]
    if not known:
        return bags
    table = table_labels(TextTable(_OBS, ("slide_id", "label", "case_id"), rows))
    return label_bags(bags, table, str(_OBS), classes)


def to_anndata(bags: BagDataset) -> "anndata.AnnData":
    """Put bags into one AnnData; see `BagDataset.to_anndata`."""
    try:
        from anndata import AnnData
    except ImportError as error:
        raise MissingPartError(
            "Expected the package 'anndata' to make an AnnData, but it is not installed. "
            f"Install it with: {install_command('anndata')}."
        ) from error
    import pandas as pd

    found = list(bags)
    sizes = [bag.num_instances for bag in found]
    names = [None if bag.label is None else bags.target.decode(bag.label) for bag in found]

    def repeated(values: list[Any]) -> NDArray[Any]:
        return np.repeat(np.array(values, dtype=object), sizes)

    obs = pd.DataFrame(
        {
            "slide_id": pd.Categorical(repeated(list(bags.slide_ids)), list(bags.slide_ids)),
            "case_id": pd.Categorical(repeated(list(bags.case_ids))),
        },
        index=[f"{bag.slide_id}-{i}" for bag in found for i in range(bag.num_instances)],
    )
    if any(name is not None for name in names):
        obs["label"] = pd.Categorical(repeated(names), list(bags.class_names))
    if all(bag.patch_size is not None for bag in found):
        obs["patch_size"] = repeated([bag.patch_size for bag in found]).astype(np.int64)
    instance_labels = [bag.instance_labels for bag in found if bag.instance_labels is not None]
    if len(instance_labels) == len(found):
        obs["instance_label"] = np.concatenate([one.numpy() for one in instance_labels])
    coords = [bag.coords for bag in found if bag.coords is not None]
    return AnnData(
        X=np.concatenate([bag.features.float().cpu().numpy() for bag in found]),
        obs=obs,
        obsm={"spatial": np.concatenate([one.numpy() for one in coords])}
        if len(coords) == len(found)
        else {},
    )


def _by_slide(data: Any, slide_column: str | None) -> dict[str, Any]:
    """Cut an AnnData into its slides, in the order of their first rows."""
    for name in ("obs", "obsm", "X"):
        if not hasattr(data, name):
            raise BagError(
                f"Expected an AnnData, or a dictionary of them by slide, but got a "
                f"{type(data).__name__}. Read the file with anndata first."
            )
    table = _columns(data)
    if not has_column(table, "slide", slide_column) and slide_column is None:
        raise LabelError(
            f"Expected a column of slides such as 'slide_id' in obs, but got the columns "
            f"{', '.join(table.columns) or 'none'}. Name it with `slide_column`; of one slide, "
            'give {"its name": the AnnData}.'
        )
    slides = [as_text(cell) for cell in data.obs[find_column(table, "slide", slide_column)]]
    if "" in slides:
        raise LabelError(
            f"Expected a slide for each row of obs, but row {slides.index('')} has none. "
            "Fill it in."
        )
    rows: dict[str, list[int]] = {}
    for row, slide in enumerate(slides):
        rows.setdefault(slide, []).append(row)
    return {slide: data[found] for slide, found in rows.items()}


def _known(parts: Mapping[str, Any], found: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Return what slides have, without those that do not have it."""
    values = {slide_id: found(one, slide_id) for slide_id, one in parts.items()}
    return {slide_id: value for slide_id, value in values.items() if value is not None}


def _columns(data: Any) -> TextTable:
    return TextTable(_OBS, tuple(str(name) for name in data.obs.columns), ())


def _features(data: Any, key: str | None, slide_id: str) -> NDArray[Any]:
    if key is not None and key not in data.obsm:
        raise BagError(
            f"Expected the features of '{slide_id}' in obsm['{key}'], but obsm has "
            f"{listed(sorted(data.obsm)) or 'nothing'}. Correct `features`, or leave it out for X."
        )
    matrix = data.X if key is None else data.obsm[key]
    if matrix is None:
        raise BagError(
            f"Expected the features of '{slide_id}' in X, but there are none. Name the key of obsm "
            "that has them with `features`."
        )
    matrix = matrix.toarray() if hasattr(matrix, "toarray") else matrix
    return np.asarray(matrix)


def _coords(data: Any, key: str) -> NDArray[Any] | None:
    return np.asarray(data.obsm[key]) if key in data.obsm else None


def _instance_labels(data: Any) -> NDArray[Any] | None:
    if "instance_label" not in data.obs:
        return None
    return np.asarray(data.obs["instance_label"])


def _patch_size(data: Any, slide_id: str) -> int | None:
    if "patch_size" in data.obs:
        sizes = {int(size) for size in data.obs["patch_size"]}
        if len(sizes) != 1:
            raise BagError(
                f"Expected one patch_size a slide in obs, but '{slide_id}' has {sorted(sizes)}. "
                "Split the slide."
            )
        return sizes.pop()
    spec = data.uns.get("tile_spec", {})
    if not {"width", "base_downsample"} <= set(spec):
        return None
    return int(spec["width"] * spec["base_downsample"])


def _one(data: Any, what: Any, given: str | None, slide_id: str) -> str:
    """Return the label or patient that all rows of a slide have; empty where there is none."""
    table = _columns(data)
    if given is None and not has_column(table, what):
        return ""
    column = find_column(table, what, given)
    texts = sorted({as_text(cell) for cell in data.obs[column]})
    if len(texts) > 1:
        raise LabelError(
            f"Expected one {what} a slide in obs['{column}'], but '{slide_id}' has "
            f"{listed(texts)}. Give each row of a slide the same."
        )
    return texts[0]
