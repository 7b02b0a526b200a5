"""Rules that validated specs keep: of keys and projections, transforms, selectors, and the steps of tests."""
