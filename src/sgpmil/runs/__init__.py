"""Runs on disk: folds, checkpoints, predictions, instance scores, provenance.

Everything that reads or writes a run goes through this room.
"""
