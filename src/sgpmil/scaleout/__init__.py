"""Jobs on several machines: executors, Ray clusters, bags in Ray's object store, Slurm arrays.

This room knows jobs, not what they do: training, extraction, prediction and studies hand it theirs.
"""
