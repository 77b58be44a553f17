"""Functions of tensors."""
