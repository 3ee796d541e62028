"""Page contents: how keys and values lie in a page, and how survivors are compacted."""
