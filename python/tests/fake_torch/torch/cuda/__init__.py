_initialized = False


def is_initialized():
    return _initialized


def _lazy_init():
    global _initialized
    _initialized = True


def _get_device_index(device, optional=False):
    return 0 if device is None else int(device)


def current_device():
    return 0


def device_count():
    return 1


from . import memory  # noqa: E402,F401
from .memory import *  # noqa: E402,F401,F403
