"""The modules that DeepSpeed finds when it walks a device's package of builders, one for each op."""
