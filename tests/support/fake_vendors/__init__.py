"""Vendor packages over a device made of host memory; this directory on the path stands for their installation."""
