"""The controller: sends desired dataflows to any number of replicas, and merges their responses."""
