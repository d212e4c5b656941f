"""Predictions become figures, explanations and pages.

================  ==============================================================================
room or file      holds
================  ==============================================================================
figures           every figure, and the look they share
explanations      the files that explain a run, slide by slide (``sgpmil explain``)
pages             the page of a run and of a case (``sgpmil report``)
material          what a run can be explained with: predictions, models, embeddings, slides
slide_picture     a slide to look at, with what experts drew on it
================  ==============================================================================
"""
