"""Rules for validated specs: keys and projections, transforms, selectors, and steps of tests."""
