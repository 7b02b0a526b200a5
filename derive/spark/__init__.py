"""The Spark executor: runs plans on many cores or machines."""
