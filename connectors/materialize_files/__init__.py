"""Materialization of collections into files of a folder, exactly once: Parquet, JSON Lines or CSV."""

from connectors.materialize_files.connector import FilesConnector as FilesConnector
