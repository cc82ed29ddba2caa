"""The results of training and evaluation → figures and pages that work offline."""
