"""Comparison of runs on the same test slides.

=============  ===================================================================================
file           contents
=============  ===================================================================================
comparability  checks: each fold on its own test slides, all runs on the same
significance   paired, corrected and rank tests across folds; Holm's correction
delong         test of two AUCs on one test set
compare        the comparison
result         its result, with notes on its limits
tables         the result as CSV, Markdown and LaTeX
=============  ===================================================================================
"""
