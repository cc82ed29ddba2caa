"""The paper's experiments, their like on other data, and today's leaderboards: tasks, protocols, records."""
