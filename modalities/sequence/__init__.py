"""Sequences of tokens: text, music, DNA and made-up tasks; tokenizers, data, training and scores of small decoders."""
