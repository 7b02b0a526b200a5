"""Previews of derivations: runs over some documents that commit nothing, and a record of each document's effects."""
