"""Fit one fold, fit all folds; the only room that knows Lightning.

- `settings`: `TrainingSettings`
- `defaults`: each model's own
- `fit`: one model on one fold
- `cross_validation`: all folds, each scored on its own test set
- `turns`, `folds_at_once`: several folds side by side on a GPU
- `run_folder`: what a run leaves on disk
- `classifier`: `SGPMILClassifier`, in the manner of scikit-learn
- `untrained`, `trainer`, `lightning_module`, `fold_data`, `steps`, `training_state`,
  `random_numbers`, `callbacks`, `batches`, `optimisers`, `schedule`, `divergence`: parts of `fit`
- `recording`, `half_weights`, `adam_kernels`, `adam_programs`: steps that a GPU replays
- `lightning_package`: Lightning, imported late
- `progress`: the bars
"""
