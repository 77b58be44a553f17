"""Tensor-parallel generation: a small transformer, split over ranks that use only ``torch.distributed``."""
