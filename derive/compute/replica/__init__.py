"""A compute instance at work: commands of controllers, peeks, tails and views that are written back."""
