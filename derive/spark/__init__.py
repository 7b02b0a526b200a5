"""Spark: carries out plans on many cores or machines."""
