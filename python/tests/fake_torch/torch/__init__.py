"""As much of PyTorch as penstock touches, for tests without it.

The functions of torch.cuda.memory call torch._C through the module, as the
real ones do; the allocator object calls the shim's functions through ctypes.
"""

import os
import types

__version__ = os.environ.get("FAKE_TORCH_VERSION", "2.11.0+fake")
version = types.SimpleNamespace(cuda="13.0", hip=None)


class OutOfMemoryError(RuntimeError):
    pass


from . import _C, cuda  # noqa: E402,F401
