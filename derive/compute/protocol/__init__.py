"""What a controller and a compute instance say to one another."""
