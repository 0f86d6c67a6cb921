"""Measurements of speed: one prediction (`zoo.bench.predict`) and one block per encoding (`zoo.bench.block`)."""
