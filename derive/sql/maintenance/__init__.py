"""View maintenance: desired dataflows, instances, and their controllers."""
