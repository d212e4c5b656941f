"""Recipes, the demo, and the settings that join the rooms.

- `recipe`: one YAML file, one experiment
- `digits`: bags of real handwritten digits, the data of the demo
- `demo`: the demo
"""
