"""Patches as an overlay for the viewer of TIAToolbox."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.explanation.exports.patch_squares import json_fields, write_squares
from sgpmil.explanation.exports.tables import PLACE_COLUMNS, patch_table
from sgpmil.explanation.maps.placement import patch_side, placed_coords
from sgpmil.explanation.maps.scaling import scaled
from sgpmil.shapes import Float, Int

__all__ = ["write_tiatoolbox_overlay"]


def write_tiatoolbox_overlay(
    path: str | os.PathLike[str],
    slide_id: str,
    scores: InstanceScores,
    class_names: Sequence[str],
    *,
    prototypes: Int[np.ndarray, " N"] | None = None,
    similarity: Float[np.ndarray, " N"] | None = None,
) -> None:
    r"""Write a slide's patches as GeoJSON that TIAToolbox's viewer lays over the slide.

    Put the file into the folder ``overlays`` beside the folder ``slides``; its name must contain
    that of the slide (``<slide>.geojson``). Then ``tiatoolbox visualize --base-path FOLDER``
    offers it, and `AnnotationStore.from_geojson` reads it.

    The viewer colours patches by a property of theirs that is a number between 0 and 1, and shows
    and hides them by their property ``type``. So the properties are flat: the score columns of
    `patch_table` and, of those that may lie outside that range, a scaled copy:

    - ``attention_mean_scaled``, ``attention_std_scaled``: from the slide's lowest to its highest
      (see `scaled`). Where a model's attention lies between 0 and 1, ``attention_mean`` itself
      can be coloured, and compared between slides.
    - ``margin_<class>_scaled``: $\frac12 + m_k / (2 \max_j |m_j|)$, so that 1/2 is no evidence.

    The ``type`` is the patch's prototype ("prototype 7"), or "patch".

    Args:
        path: File to write (.geojson); replaced whole where it exists.
        slide_id: Name of the slide.
        scores: Scores of its patches, with coordinates.
        class_names: Name of each class.
        prototypes: Inducing point of each patch; negative where there is none.
        similarity: How similar the patch is to it.

    Raises:
        ExplanationError: The scores have no coordinates, or the classes or prototypes do not fit
            them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = patch_table(slide_id, scores, class_names, prototypes=prototypes, similarity=similarity)
    types = ["patch"] * scores.num_instances
    if prototypes is not None:
        types = [f"prototype {p}" if p >= 0 else "patch" for p in prototypes.tolist()]
    table = table.drop_columns(list(PLACE_COLUMNS)).add_column(0, "type", pa.array(types))
    for name in ("attention_mean", "attention_std"):
        values = table[name].to_numpy()
        table = table.append_column(f"{name}_scaled", pa.array(scaled(_known(values), "minmax")))
    if scores.evidence_mean is not None:
        for name in class_names:
            signed = _signed(_known(table[f"margin_{name}"].to_numpy()))
            table = table.append_column(f"margin_{name}_scaled", pa.array(signed))
    table = table.combine_chunks()

    def properties(part: slice) -> Any:
        rows = table.slice(part.start, part.stop - part.start)
        columns = [column.combine_chunks() for column in rows.columns]
        fields = json_fields(table.column_names, columns)
        return pc.binary_join_element_wise("{", fields, "}", "")

    write_squares(path, slide_id, placed_coords(scores), patch_side(scores), properties)


def _known(values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    return np.where(np.isfinite(values), values, np.nan)


def _signed(margin: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    largest = float(np.nanmax(np.abs(margin), initial=0.0))
    return 0.5 + 0.5 * margin / largest if largest > 0 else np.where(np.isnan(margin), margin, 0.5)
