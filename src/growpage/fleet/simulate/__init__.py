"""What a policy would do: a load, replicas that start slowly, and the decision code as it runs."""
