"""BATCH → QUANTILES: MQTransformer, its ablations and its baselines, for every creation time in one pass."""
