"""Plans of maintained views: operators, joins as sums of terms, and the columns that are read."""
