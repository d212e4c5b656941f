import pytest

from sgpmil.errors import SettingsError
from sgpmil.experiments.mnist_rows import (
    COLUMNS,
    PAPER,
    RATES,
    ROWS,
    TRAINING,
    choose_rows,
    own_row,
    with_rates,
)
from sgpmil.models import list_models


def test_every_model_that_reads_images_has_a_row_with_the_network_in_front():
    assert {row.model for row in ROWS.values()} == set(list_models()) - {"bag-size"}
    for row in ROWS.values():
        resolved = row.design.resolved()
        assert resolved["model_settings"]["encoder"] == "digit-cnn"
        assert resolved["model_settings"]["standardise"] is False
        assert row.paper in {"", *PAPER}
    assert {row.paper for row in ROWS.values()} == {"", *PAPER}


def test_rows_are_trained_alike_but_for_what_they_say():
    for row in ROWS.values():
        training = row.design.resolved()["training"]
        assert {key: training[key] for key in TRAINING} == {**TRAINING, **row.training}
        assert training["learning_rate"] == row.rate


def test_the_papers_rows_have_its_columns():
    assert all(len(row.values) == len(COLUMNS) for row in PAPER.values())
    # FROC is the AUC times the share of negative instances, .837 on average.
    for row in PAPER.values():
        assert row.values[3] / row.values[4] == pytest.approx(0.837, abs=0.025)


def test_a_row_of_your_own_starts_from_a_row_or_from_a_model():
    found = own_row("abmil-deep@slow:training.learning_rate=1e-4,dropout=0.5")
    assert (found.name, found.model) == ("abmil-deep@slow", "abmil")
    assert found.settings["preset"] == "deep"
    assert found.settings["dropout"] == 0.5
    assert found.training["learning_rate"] == 1e-4
    assert found.training["epochs"] == TRAINING["epochs"]
    alone = own_row("mine:model=dsmil")
    assert (alone.model, alone.settings["encoder"]) == ("dsmil", "digit-cnn")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nosuch@mine:dropout=0.5", "row.*nosuch"),
        ("abmil@mine:drop=0.5", "drop"),
        ("abmil@mine:training.epochs=0", "epochs >= 1"),
    ],
)
def test_an_impossible_row_is_refused(text, said):
    with pytest.raises(SettingsError, match=said):
        own_row(text)


def test_chosen_rows_and_their_rates():
    with pytest.raises(SettingsError, match="Did you mean 'abmil'"):
        choose_rows(("abmill",))
    designs = with_rates(choose_rows(("max-pool", "abmil")))
    assert [one.name for one in designs] == [
        f"{row}@{rate:g}" for row in ("abmil", "max-pool") for rate in RATES
    ]
    assert [one.training["learning_rate"] for one in designs] == [*RATES, *RATES]
