"""Columns of a table of instance scores, as files and data frames have them."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sgpmil.errors import PredictionError

if TYPE_CHECKING:
    import pandas as pd

    from sgpmil.evaluation.prediction import InstanceScores

Column = tuple[str, Any]
"""Name and values of a column."""


def instance_columns(scores: "InstanceScores", class_names: Sequence[str]) -> list[Column]:
    """Return the columns of all scores, with classes by their names.

    They are ``attention_mean`` and ``attention_std``; of each class ``evidence_<class>``,
    ``margin_<class>`` and ``single_<class>``, each with ``…_std``, and
    ``single_probability_<class>``; and ``novelty``. Scores that there are not have no column.
    """
    columns: list[Column] = [
        ("attention_mean", scores.attention_mean),
        ("attention_std", scores.attention_std),
    ]
    if scores.evidence_mean is not None and scores.evidence_std is not None:
        for index, name in enumerate(class_names):
            columns += [
                (f"evidence_{name}", scores.evidence_mean[:, index]),
                (f"evidence_{name}_std", scores.evidence_std[:, index]),
            ]
        for index, name in enumerate(class_names):
            with np.errstate(invalid="ignore"):  # of infinite evidence the margin is unknown
                margin = scores.score("evidence", index)
                margin_std = scores.score_std("evidence", index)
            columns += [(f"margin_{name}", margin), (f"margin_{name}_std", margin_std)]
    if "single" in scores.kinds:
        for index, name in enumerate(class_names):
            columns += [
                (f"single_{name}", scores.score("single", index)),
                (f"single_{name}_std", scores.score_std("single", index)),
                (f"single_probability_{name}", scores.single_probability(index)),
            ]
    return columns if scores.novelty is None else [*columns, ("novelty", scores.novelty)]


def instance_frame(scores: "InstanceScores", class_names: Sequence[str]) -> "pd.DataFrame":
    """Put scores into a DataFrame, a row an instance; see `InstanceScores.to_pandas`."""
    import pandas as pd

    columns: list[Column] = [("patch", np.arange(scores.num_instances))]
    if scores.coords is not None:
        columns += [("x", scores.coords[:, 0]), ("y", scores.coords[:, 1])]
    if scores.patch_size is not None:
        columns.append(("side", np.full(scores.num_instances, scores.patch_size)))
    columns += instance_columns(scores, class_names)
    if (labels := scores.instance_labels) is not None:
        columns.append(("instance_label", pd.array(labels, dtype="Int64")))
        columns[-1][1][labels < 0] = pd.NA
    twice = [name for name, count in Counter(name for name, _ in columns).items() if count > 1]
    if twice:
        raise PredictionError(
            f"Expected classes whose columns differ, but got '{twice[0]}' twice. Rename a class."
        )
    return pd.DataFrame(dict(columns))
