"""The Kubernetes side of the autoscaler: reading, scaling, electing a leader, reporting."""
