"""Panel and network → forecasts."""
