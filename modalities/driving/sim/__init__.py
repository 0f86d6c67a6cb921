"""A seeded simulator of driving scenes: a street, its traffic, six cameras and a lidar, in the format of nuScenes.

Nothing is recorded: what a model trained on it can do says something about models, not about roads.
"""
