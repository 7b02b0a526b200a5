"""A derivation runtime whose collections are exact functions of time."""
