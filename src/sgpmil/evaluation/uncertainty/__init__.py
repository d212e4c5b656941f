"""Uncertainty of predictions, and decisions that use it.

==================  ==============================================================================
file                contents
==================  ==============================================================================
measures            uncertainty of each slide: error AUROC, Welch's test, selective prediction
temperature         temperature scaling on validation slides
conformal           prediction sets with a promised coverage, and their metrics
decisions           deferral of uncertain slides to a human
calibration_slides  the least number of slides that both are fitted on
analysis            all of these for one fold and over folds
==================  ==============================================================================
"""
