"""Learning algorithms: one folder each, losses as pure functions in the order of the paper. Needs torch."""
