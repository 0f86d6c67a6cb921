"""Images: patch embedding, vision transformer, reading and preprocessing of pictures.

Nothing is imported here, so that presets can be read without torch.
"""
