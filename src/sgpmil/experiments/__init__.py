"""Recipes, the demo, the comparisons, and the settings that join the rooms.

- `recipe`, `recipe_run`: one YAML file, one experiment
- `digits`: bags of real handwritten digits, the data of the demo
- `demo`: the demo
- `study`: variants of models over data sets, folds and seeds
- `job_files`, `job_pool`, `job_progress`: a study's results on disk, processes and progress bar
- `mnist`, `idx_files`: bags of MNIST's images
- `classic_mil`: the classic sets of multiple instance learning
- `model_study`, `model_rows`, `model_table`, `model_timing`: every model on real data sets
"""
