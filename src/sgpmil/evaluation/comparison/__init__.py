"""Whether one run is better than others, on the same test slides.

================  ==============================================================================
file              holds
================  ==============================================================================
comparability     may they be compared: each fold on its own test slides, all runs on the same
significance      paired, corrected and rank tests across folds; Holm's correction
delong            two AUCs on one test set
compare           the comparison; `result` what comes of it, `notes` what to know of it
tables            it as files: CSV, `markdown` and `latex`, of the same `cells`
================  ==============================================================================
"""
