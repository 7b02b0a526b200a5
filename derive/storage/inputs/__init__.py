"""Input formats of ingestion: each is a generator of numbered lines (`line.Line`)."""
