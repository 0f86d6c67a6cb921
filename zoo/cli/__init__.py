"""The `zoo` command line: one module per command, none of which imports torch before it has to."""
