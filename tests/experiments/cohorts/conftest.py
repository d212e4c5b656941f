"""Rehearsals of cohorts, small enough to train on."""

import pytest

from sgpmil.experiments.cohorts.plan import CohortOptions
from sgpmil.experiments.cohorts.rehearsal import RehearsalOptions, write_rehearsal
from tests.experiments.cohorts.tables_of_labels import write_labels

MODELS = ("mean-pool", "max-pool", "sgpmil")


@pytest.fixture(scope="session")
def rehearsed(tmp_path_factory):
    """Return a function that writes a rehearsal of a cohort once."""
    made = {}

    def write(cohort, form="store"):
        if (cohort, form) not in made:
            folder = tmp_path_factory.mktemp(cohort)
            labels = write_labels(folder / "published.csv", cohort)
            options = RehearsalOptions(
                cohort=cohort,
                labels=labels,
                out=folder / "data",
                form=form,
                scale=0.012 if cohort != "panda" else 0.06,
                dim=24,
                device="cpu",
            )
            made[cohort, form] = write_rehearsal(options)
        return made[cohort, form]

    return write


@pytest.fixture
def options_of(rehearsed, tmp_path):
    """Return a function that makes the options of a small study of a rehearsal."""

    def make(cohort, form="store", **how):
        found = rehearsed(cohort, form)
        settings = {
            "features": found.features,
            "labels": found.labels,
            "splits": found.splits,
            "annotations": found.annotations,
            "out": tmp_path / "study",
            "model": MODELS,
            "fold": ("0", "1") if cohort != "bracs" else (),
            "epochs": 1,
            "device": "cpu",
        }
        return CohortOptions(cohort=cohort, **(settings | how))

    return make
