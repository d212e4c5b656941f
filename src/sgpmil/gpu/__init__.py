"""Code that exists only because of a GPU: Triton programs with their torch twins, streams, memory.

Every operation here also runs on a CPU, where plain torch computes the same.
"""
