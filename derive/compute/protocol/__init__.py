"""The protocol between a controller and a compute instance."""
