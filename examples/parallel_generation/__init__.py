"""Tensor-parallel generation: a small transformer, cut over ranks that know only ``torch.distributed``."""
