"""As much of PyTorch as penstock touches, for tests without it.

The functions of torch.cuda.memory call torch._C through the module, as the
real ones do; the allocator object calls the shim's functions through ctypes.
"""

import types

__version__ = "0.fake"
version = types.SimpleNamespace(cuda="13.0", hip=None)


class OutOfMemoryError(RuntimeError):
    pass


from . import _C, cuda  # noqa: E402,F401
