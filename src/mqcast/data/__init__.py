"""Frame → panel → batch."""
