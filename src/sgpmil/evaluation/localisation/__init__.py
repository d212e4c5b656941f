"""Localisation: instance scores against the labels of instances, which no model saw.

===================  ===========================================================================
file                 contents
===================  ===========================================================================
scored_slides        scores of instances; labels from annotations; uniform and random baselines
threshold            choice of a threshold, and metrics of the calls that it makes
localisation         AUC, average precision, F1, calibration and uncertainty of instance scores
lesion_detection     detections, lesions found, and the FROC of CAMELYON16 and of digit bags
pixel_protocol       the published protocol, in which background counts
instance_evaluation  all of these for the folds of a run
===================  ===========================================================================
"""
