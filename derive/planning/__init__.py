"""Plans: the differences between a catalog and the last run in a data folder, and the effect of each difference."""
