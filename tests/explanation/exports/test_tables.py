import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.exports import patch_table, write_patch_table

from .scored_patches import CLASSES, scored

SLIDE = 'TCGA,"07"\n001'
"""A name that a careless CSV would break."""
PROTOTYPES = np.arange(60) % 7 - 1
SIMILARITY = np.random.default_rng(2).random(60)


def write(path):
    write_patch_table(path, SLIDE, scored(), CLASSES, prototypes=PROTOTYPES, similarity=SIMILARITY)


def read(path):
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    # Python's own conversion of text to numbers is exact; that of pandas need not be.
    text = pd.read_csv(path, dtype=str)
    return text.apply(lambda column: column if column.name == "slide_id" else column.map(float))


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_pandas_reads_the_same_numbers_again(tmp_path, suffix):
    path, scores = tmp_path / f"a{suffix}", scored()
    write(path)
    table = read(path)
    assert table["slide_id"].tolist() == [SLIDE] * 60
    assert table["patch"].tolist() == list(range(60))
    assert np.array_equal(table[["x", "y"]], scores.coords)
    assert table["side"].tolist() == [512] * 60
    floats = {
        "attention_mean": scores.attention_mean,
        "attention_std": scores.attention_std,
        "novelty": scores.novelty,
        "prototype_similarity": SIMILARITY,
    }
    for index, name in enumerate(CLASSES):
        floats[f"evidence_{name}"] = scores.evidence_mean[:, index]
        floats[f"evidence_{name}_std"] = scores.evidence_std[:, index]
        with np.errstate(invalid="ignore"):
            floats[f"margin_{name}"] = scores.score("evidence", index)
        floats[f"margin_{name}_std"] = scores.score_std("evidence", index)
        floats[f"single_{name}"] = scores.single_mean[:, index]
        floats[f"single_{name}_std"] = scores.single_std[:, index]
        floats[f"single_probability_{name}"] = scores.single_prob[:, index]
    for name, values in floats.items():
        assert np.array_equal(table[name].to_numpy().astype(values.dtype), values, equal_nan=True)
    for name, values in (("instance_label", scores.instance_labels), ("prototype", PROTOTYPES)):
        assert table[name].isna().tolist() == (values < 0).tolist()
        assert np.array_equal(table[name].dropna(), values[values >= 0])
    assert len(table.columns) == 5 + len(floats) + 2


def test_parquet_keeps_types_and_classes(tmp_path):
    write(tmp_path / "a.parquet")
    schema = pq.read_schema(tmp_path / "a.parquet")
    assert json.loads(schema.metadata[b"class_names"]) == list(CLASSES)
    assert str(schema.field("attention_mean").type) == "float"
    assert str(schema.field("prototype_similarity").type) == "double"
    assert str(schema.field("prototype").type) == "int64"


@pytest.mark.parametrize("kind", ["<f2", ">f4", ">f8"])
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_other_kinds_of_numbers_are_written_as_usual_ones(tmp_path, kind, suffix):
    values = np.array([0.1, 0.25, 1e-4], dtype=kind)
    coords = np.array([[0, 0], [9, 0], [18, 0]], dtype=">i4")
    scores = InstanceScores(values, values, coords=coords, patch_size=9)
    write_patch_table(tmp_path / f"a{suffix}", "a", scores, ("n", "t"))
    table = read(tmp_path / f"a{suffix}")
    assert table["x"].tolist() == [0, 9, 18]
    assert np.array_equal(table["attention_mean"].to_numpy().astype(kind), values)


def test_what_a_model_does_not_give_has_no_column():
    scores = InstanceScores(
        np.ones(2), np.zeros(2), coords=np.array([[0, 0], [9, 0]]), patch_size=9
    )
    assert patch_table("a", scores, ("n", "t")).column_names == [
        "slide_id",
        "patch",
        "x",
        "y",
        "side",
        "attention_mean",
        "attention_std",
    ]


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ExplanationError, match=r"'\.parquet' or '\.csv', but got 'a\.xlsx'"):
        write_patch_table(tmp_path / "a.xlsx", "a", scored(), CLASSES)
    with pytest.raises(ExplanationError, match="coordinates of their patches, but got none"):
        write_patch_table(tmp_path / "a.csv", "a", InstanceScores(np.ones(2), np.zeros(2)), CLASSES)
    with pytest.raises(ExplanationError, match="'prototype_similarity' for each of the 60"):
        write_patch_table(tmp_path / "a.csv", "a", scored(), CLASSES, similarity=np.ones(3))
    with pytest.raises(ExplanationError, match="'evidence_a' would appear 2 times"):
        write_patch_table(tmp_path / "a.csv", "a", scored(), ("a", "a"))
    assert not list(tmp_path.iterdir())
