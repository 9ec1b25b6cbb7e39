"""Penstock from code instead of the command line. Needs a GPU, PyTorch and the package `penstock`.

    python3 examples/enable_from_code.py

What the program does before enable() is done again: restart=True starts the interpreter anew, with the launch hook.
"""

import penstock

# Before the first CUDA call: PyTorch's allocator cannot be changed later.
penstock.enable(budget="2GiB", restart=True)

import torch  # noqa: E402

# Twelve matrices of 256 MiB: 3 GiB, in a budget of 2.
matrices = [torch.full((8192, 8192), float(i), device="cuda") for i in range(12)]
for _ in range(5):
    for m in matrices:
        m.add_(1)
print("right:", all(bool((m == i + 5).all()) for i, m in enumerate(matrices)))

stats = penstock.stats()
print(f"on the GPU at most: {stats['resident_peak_bytes'] >> 20} MiB of {stats['allocated_peak_bytes'] >> 20} MiB")
print(f"moved in {stats['h2d_bytes'] >> 20} MiB, out {stats['d2h_bytes'] >> 20} MiB")
