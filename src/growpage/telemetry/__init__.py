"""What operators see: metrics, the live page, rules. Imports neither torch nor vLLM."""
