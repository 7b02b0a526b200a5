"""Forms in which documents come to be ingested: each is a generator of numbered lines (`line.Line`)."""
