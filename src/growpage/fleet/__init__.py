"""The autoscaler for fleets of vLLM servers. Needs neither torch nor vLLM."""
