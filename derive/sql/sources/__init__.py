"""Sources: relations whose rows come from collections, files or a load generator."""
