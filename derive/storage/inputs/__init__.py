"""Input formats of ingestion; each format is a generator of numbered lines (`line.Line`)."""
