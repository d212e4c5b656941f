"""The warning of slides that are unlike the training slides."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import sgpmil
from sgpmil.bags import Bag, BagBatch
from sgpmil.evaluation import NoveltyWarning, PredictionTable
from sgpmil.evaluation.novelty_warning import novelty_warning, warn_where_most_are_unlike
from sgpmil.models import MILModel, build_model
from tests.evaluation.tables import table_of


def draw(count: int, mean: float, seed: int) -> list[Bag]:
    rng = np.random.default_rng(seed)
    values = rng.normal(mean, size=(count, 20, 4))
    return [Bag(torch.from_numpy(v).float(), f"s{i}") for i, v in enumerate(values)]


@pytest.fixture(scope="module")
def model() -> MILModel:
    model = build_model("abmil", in_dim=4, num_classes=2, hidden_dim=3, attention_dim=2)
    model.novelty.fit(BagBatch.pack(draw(120, 0.0, 0)))
    return model


def test_predict_warns_once_of_most_slides_and_names_three(model: MILModel) -> None:
    with pytest.warns(NoveltyWarning, match=r"5 of 6 slides are unlike .* and 2 more\.") as found:
        table = sgpmil.predict(model, [*draw(5, 30.0, 1), draw(6, 0.0, 2)[5]])
    assert len(found) == 1
    assert str(found[0].message) == novelty_warning(table, 120)


def test_a_p_value_that_a_file_rounded_up_is_the_smallest_possible() -> None:
    table = table_of([[0.9, 0.1], [0.2, 0.8]], [0, 1])
    smallest = float(np.float32(1 / 45))
    assert smallest > 1 / 45
    rows = tuple(replace(p, novelty_p=smallest, novel_share=1.0) for p in table.predictions)
    with pytest.warns(NoveltyWarning, match="2 of 2 slides"):
        warn_where_most_are_unlike(replace(table, predictions=rows), 44)


def test_predict_does_not_warn_of_few_slides_or_where_it_is_not_wanted(model: MILModel) -> None:
    strange, usual = draw(2, 30.0, 1), draw(4, 0.0, 2)[2:]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        sgpmil.predict(model, [*strange, *usual])  # half of them is not most
        sgpmil.predict(model, strange, warn=False)
        sgpmil.predict(model, strange, novelty=False)
    assert found == []
    with pytest.warns(NoveltyWarning, match="2 of 2 slides"):
        sgpmil.predict(model, strange)


@pytest.mark.parametrize(
    ("num_training", "count", "expected"),
    [(120, 1, True), (20, 1, False), (20, 2, True), (5, 2, False), (5, 3, True)],
)
def test_slides_that_are_unlike_by_chance_give_no_warning(
    num_training: int, count: int, expected: bool
) -> None:
    # The chance of `count` slides at the smallest p-value is its power: 1/21, 1/441, 1/36, 1/216.
    smallest = 1 / (1 + num_training)
    table = with_p_values([smallest] * count)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_where_most_are_unlike(table, num_training)
    assert bool(found) is expected


def with_p_values(values: list[float]) -> PredictionTable:
    table = table_of(np.full((len(values), 2), 0.5), [0] * len(values))
    rows = zip(table.predictions, values, strict=True)
    return replace(
        table, predictions=tuple(replace(p, novel_share=0.5, novelty_p=v) for p, v in rows)
    )
