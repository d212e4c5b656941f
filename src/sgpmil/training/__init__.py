"""Training of one fold and of all folds, on Lightning Fabric.

- `fit`: one model on one fold
- `cross_validation`: all folds, each scored on its own test set
- `classifier`: `SGPMILClassifier`, in the manner of scikit-learn
- `settings`: `TrainingSettings`, the learning rate of an epoch, each model's own training
- `callbacks`: a user's own code in a training
- `loop`: the training loop
- `engines`: the optimiser steps of an epoch; `recorded_steps` and `recorded_bags`: as CUDA graphs
- `batches`, `optimisers`: what a step is taken with
- `fold_files`: the files of a fold's training
- `turns`: folds side by side on a GPU
- `tracking`: a record of a run by TensorBoard, MLflow or Weights & Biases
- `fabric`: devices and processes; the only module that imports Fabric
"""

from typing import TYPE_CHECKING

from sgpmil.on_demand import names_on_demand

if TYPE_CHECKING:
    from sgpmil.training.callbacks import Callback, FitProgress

__all__ = ["Callback", "FitProgress"]

__getattr__, __dir__ = names_on_demand(
    __name__,
    {
        "callbacks": "Callback FitProgress",
    },
)
