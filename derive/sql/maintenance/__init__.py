"""Views and indexes kept up to date: desired dataflows, instances, and their controllers."""
