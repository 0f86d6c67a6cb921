"""One folder per published checkpoint: its card, its record, and the weights where they are small enough to embed."""
