"""What DeepSpeed finds when it walks a device's package of builders."""
