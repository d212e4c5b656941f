"""Predictions become figures.

- `figures`: reliability and ROC curves
- `attention_figures`: the instances of bags, as pictures
- `map_figures`, `map_layers`, `map_drawing`: attention and evidence at their places on the slide
- `patch_figures`: the patches to look at
- `material`, `slide_picture`: what an explanation is drawn from
- `run_explanation`, `explanation_settings`, `explanation_folder`, `slide_explanation`,
  `fold_prototypes`, `slide_list`: all files that explain a run
- `uncertainty_figures`, `recalibration_figures`: what uncertainty is worth; temperature and sets
- `comparison_figures`: runs side by side
- `run_figures`: the figures of a run, written into its folder
- `canvas`: the look they share
"""
