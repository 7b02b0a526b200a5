"""Plans: the differences between a catalog and what a data folder ran, and the effect of each one."""
