"""The battery: every task on which defaults are judged, forecast by any model without a setting, in one table."""
