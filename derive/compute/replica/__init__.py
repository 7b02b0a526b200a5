"""A compute instance at work: commands of controllers, peeks, subscriptions, and views written back to Storage."""
