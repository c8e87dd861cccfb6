"""Attention kernels over packed streams: each op with its definition and its Triton kernel."""
