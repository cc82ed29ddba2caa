"""The paper's experiments, similar ones on other data, and leaderboards: tasks, protocols, records."""
