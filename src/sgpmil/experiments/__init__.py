"""Recipes, the demo, the comparisons, and the settings that join the rooms.

- `recipe`, `train`: one YAML file, one experiment
- `digits`, `digits_demo`: bags of real handwritten digits, and the demo on them
- `study`: variants of models over data sets, folds and seeds
- `job_files`, `job_pool`, `job_progress`: a study's results on disk, processes and progress bar
- `mnist`, `idx_files`: bags of MNIST's images
- `classic_mil`: the classic sets of multiple instance learning
- `model_study`, `model_rows`, `model_table`, `model_timing`: every model on real data sets
"""
