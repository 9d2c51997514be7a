"""The parts of the tuner: the space it searches, the laboratory, the search, and the records."""
