"""Wrong-looking set-ups of position encodings: what `zoo doctor` does, as plain data."""

from zoo.diagnosis.catalogue import CATALOGUE, SEVERITIES
from zoo.diagnosis.coordinates import check_coordinates
from zoo.diagnosis.examination import doctor

__all__ = ["CATALOGUE", "SEVERITIES", "check_coordinates", "doctor"]
