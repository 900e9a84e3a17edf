"""Evidence for the calibration of verdicts: labelled collections, searched once by many systems."""
