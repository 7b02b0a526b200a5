"""The planner: translates statements to the algebra, by name resolution, type checks and choice of overloads."""
