"""What training and evaluation have found → figures and pages that need no network."""
