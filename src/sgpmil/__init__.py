"""Probabilistic multiple instance learning on whole-slide images.

The flow is the layout, a room a step::

    slides       slide files become tissue, patches and embeddings
    phantoms     synthetic slides
    bags         embeddings on disk become bags in memory
    gpu          programs, recordings and memory of a GPU
    gp           the sparse Gaussian process
    models       bags become logits and scores of instances, with their posterior
    training     bags and labels become checkpoints
    evaluation   checkpoints and bags become predictions; predictions become metrics
    runs         a run on disk: folds, checkpoints, predictions, provenance
    explanation  predictions become maps, key patches and prototypes
    report       predictions and explanations become figures and pages
    viewer       a web page to look through slides with their maps
    scaleout     the same jobs on several machines
    experiments  recipes, the demo, studies, the bench
    cli          the command line

Names are imported when they are first used, so that ``import sgpmil`` is quick.
"""

from typing import TYPE_CHECKING

from sgpmil.on_demand import names_on_demand

if TYPE_CHECKING:
    from sgpmil import evaluation as evaluation
    from sgpmil import models as models
    from sgpmil.bags import Bag, BagBatch, BagDataset, read_bags, read_splits
    from sgpmil.errors import SgpmilError
    from sgpmil.evaluation import Prediction, PredictionTable, evaluate, predict
    from sgpmil.models import MILModel, build_model, list_models, load_model
    from sgpmil.runs.trained_model import TrainedModel, load
    from sgpmil.training.classifier import SGPMILClassifier
    from sgpmil.training.cross_validation import cross_validate
    from sgpmil.training.fit import fit
    from sgpmil.training.settings import TrainingSettings
else:
    __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "bags": "Bag BagBatch BagDataset read_bags read_splits",
            "errors": "SgpmilError",
            "evaluation": "Prediction PredictionTable evaluate predict",
            "models": "MILModel build_model list_models load_model",
            "runs.trained_model": "TrainedModel load",
            "training.classifier": "SGPMILClassifier",
            "training.cross_validation": "cross_validate",
            "training.fit": "fit",
            "training.settings": "TrainingSettings",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "Bag",
    "BagBatch",
    "BagDataset",
    "MILModel",
    "Prediction",
    "PredictionTable",
    "SGPMILClassifier",
    "SgpmilError",
    "TrainedModel",
    "TrainingSettings",
    "build_model",
    "cross_validate",
    "evaluate",
    "fit",
    "list_models",
    "load",
    "load_model",
    "predict",
    "read_bags",
    "read_splits",
]
