"""Operators of maintained views: each computes the changes of its output from the changes of its inputs."""
