"""What a model's uncertainty is worth, and what to do about it.

============  ==================================================================================
file          holds
============  ==================================================================================
measures      how uncertain each slide is, and whether that points at the errors
welch         correct and wrong predictions compared
selective     errors among the most certain slides
temperature   probabilities made calibrated on validation slides
conformal     sets of classes that hold the label as often as promised; `set_metrics` of them
deferral      which slides go to a human
decisions     sets and deferrals beside the predictions
analysis      all of it for one fold; `folds` for several
============  ==================================================================================
"""
