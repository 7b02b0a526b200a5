"""Formats of COPY: text, CSV and binary."""
