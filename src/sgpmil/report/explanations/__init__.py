"""The files that explain a run, slide by slide.

====================  ==========================================================================
file                  holds
====================  ==========================================================================
run_explanation       all slides of a run, going on where it stopped
explanation_settings  how, and which slides
explanation_folder    where the files lie, and what they were made of
slide_explanation     the files of one slide
fold_prototypes       the prototypes of a fold's model
slide_list            the slides as a table, the least certain first
====================  ==========================================================================
"""
