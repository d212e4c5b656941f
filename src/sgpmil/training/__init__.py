"""Fit one fold, fit all folds; the only room that knows Lightning.

- `settings`: `TrainingSettings`
- `defaults`: each model's own
- `fit`: one model on one fold
- `cross_validation`: all folds, each scored on its own test set
- `run_folder`: what a run leaves on disk
- `classifier`: `SGPMILClassifier`, in the manner of scikit-learn
- `trainer`, `lightning_module`, `steps`, `callbacks`, `batches`, `optimisers`, `schedule`,
  `divergence`: parts of `fit`
- `lightning_package`: Lightning, imported late
- `progress`: the bar
"""
