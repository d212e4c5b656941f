"""How well the scores of instances find the positive ones, which no model saw the labels of.

====================  ==========================================================================
file                  holds
====================  ==========================================================================
annotated             annotations of slides become labels of instances
scored_slides         scores and labels of a slide's instances; uniform and random attention
threshold             instances called positive at a threshold, and where to put it
localisation          AUC, average precision, accuracy, F1 and calibration of instance scores
instance_uncertainty  whether the spread of a score points at wrong calls
detections            from scores of patches to places
lesion_detection      lesions found; `froc` is the curve, CAMELYON16's and that of digit bags
pixel_protocol        the published protocol, in which background counts
instance_evaluation   all of it for the folds of a run
====================  ==========================================================================
"""
