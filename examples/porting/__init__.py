"""One training script for CUDA or the CPU, and ported to any device. docs/porting.md explains the port."""
