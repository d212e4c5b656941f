"""Checkpoint and bags become explanations: what the model saw, and how sure it is of it.

- `maps`: scores of the instances at their places on the slide
- `prototypes`: inducing points, and the patches that are most like them
- `key_patches`: the patches of a slide that one should look at
- `exports`: files for other viewers
"""
