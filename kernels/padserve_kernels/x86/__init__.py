"""Matrix products for x86 processors with AVX-512, as LLVM code that numba compiles into its callers.

Callers are compiled functions that run a whole model without the interpreter's lock. ``tiles``: products of a few rows
with some vectors of columns, in registers. ``products``: whole products of those. ``scalar``: functions that the
compiler turns into vectors. On one Zen 5 core they run at 275 (float32), 565 (bfloat16) and 1,110 GFLOP/s (int8) where
oneDNN gave 260, 515 and 1,000.
"""
