"""Runs on disk: folds, checkpoints, predictions, instance scores, provenance.

Everything that reads or writes a run goes through this room. `Run` is a run on disk, `RunFold` one
of its folds. `open_results` opens a run and the predictions of any other system alike::

    run = Run.create("runs/colon", folds, settings, data={"folder": "features"})
    for name, fold in run.folds.items():
        fold.write(test, validation)        # tables of predictions; then fold.is_done

    run = Run.open("runs/colon")
    run.settings, run.provenance, run.data, run.unfinished
    fold = run.folds["0"]
    fold.split.train                        # names of the training slides
    fold.checkpoint                         # for sgpmil.models.load_model
    fold.predictions, fold.validation       # tables, without scores of instances
    fold.instance_scores("slide-07")        # one slide at a time
    fold.load()                             # all of it in memory: a TestedFold
    with run.lock():                        # one process at a time writes
        ...

    results = open_results(path)            # a run, a fold's folder, .parquet, .csv, CLAM's tables
    assess(results.load())                  # or results.folds, one at a time
    compare({"ours": results.evaluate(), "theirs": open_results("theirs.csv").evaluate()})
"""

from typing import TYPE_CHECKING

from sgpmil.on_demand import names_on_demand

if TYPE_CHECKING:
    from sgpmil.runs.description import Provenance
    from sgpmil.runs.material import RunMaterial, read_material
    from sgpmil.runs.prediction_files import read_predictions, write_predictions
    from sgpmil.runs.results import Results, open_results
    from sgpmil.runs.run import Run, RunFold
else:
    __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "description": "Provenance",
            "material": "RunMaterial read_material",
            "prediction_files": "read_predictions write_predictions",
            "results": "Results open_results",
            "run": "Run RunFold",
        },
    )

__all__ = [
    "Provenance",
    "Results",
    "Run",
    "RunFold",
    "RunMaterial",
    "open_results",
    "read_material",
    "read_predictions",
    "write_predictions",
]
