"""Predictions become figures.

- `figures`: reliability and ROC curves
- `attention_figures`: attention and evidence of bags and slides
- `run_figures`: the figures of a run, written into its folder
- `canvas`: the look they share
"""
