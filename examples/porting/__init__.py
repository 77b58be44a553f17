"""One training script twice: for CUDA or the CPU, and for any device. docs/porting.md says how."""
