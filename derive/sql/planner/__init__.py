"""From statements to the algebra: names are resolved, types are checked, overloads are chosen."""
