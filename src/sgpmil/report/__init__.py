"""Predictions become figures.

- `figures`: reliability and ROC curves
- `attention_figures`: attention and evidence of bags and slides
- `uncertainty_figures`, `recalibration_figures`: what uncertainty is worth; temperature and sets
- `comparison_figures`: runs side by side
- `run_figures`: the figures of a run, written into its folder
- `canvas`: the look they share
"""
