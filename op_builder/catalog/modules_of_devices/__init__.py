"""The modules of each device's package, one for each op of the table."""
