"""Explanations of derived documents: the replay of the source documents that matter, and its comparison."""
