"""A small engine in ctypes: the structures of penstock_hook.h and helpers."""

import ctypes as C

ABI = 20
TABLE_SHIFT, RING, ENTRY_SLOTS = 21, 1 << 16, 22
OFF, OBSERVE, GATED = 0, 1, 2
FREE, RESIDENT, ABSENT = 0, 1, 2
LAUNCH, COPY, GRAPH = 1, 2, 3


class Entry(C.Structure):
    _fields_ = [("turn", C.c_uint64), ("kind", C.c_uint16), ("flags", C.c_uint16), ("id", C.c_uint32),
                ("nslots", C.c_uint16), ("stream", C.c_uint16), ("more", C.c_uint32), ("grid", C.c_uint32),
                ("recorded", C.c_uint32), ("when", C.c_uint64), ("slots", C.c_uint32 * ENTRY_SLOTS)]


class Func(C.Structure):
    _fields_ = [("name", C.c_char_p), ("handle", C.c_uint64), ("nparams", C.c_uint32), ("opaque", C.c_uint32),
                ("inspect", C.c_uint32), ("follows", C.c_uint32), ("launches", C.c_uint64), ("record", C.c_uint32), ("written", C.c_uint16 * 16), ("inspected", C.c_uint32)]


class Shared(C.Structure):
    _fields_ = [("abi_version", C.c_uint32), ("mode", C.c_uint32), ("stamp", C.c_uint32), ("reader_sleeping", C.c_uint32),
                ("head", C.c_uint64), ("tail_seen", C.c_uint64), ("launches", C.c_uint64), ("_0", C.c_uint64 * 3),
                ("ring", C.POINTER(Entry)), ("block_slot", C.POINTER(C.c_uint32)), ("slot_state", C.POINTER(C.c_uint8)),
                ("slot_last_seq", C.POINTER(C.c_uint64)), ("progress_every", C.c_uint32), ("trails", C.c_uint32),
                ("doorbell", C.c_uint32), ("size", C.c_uint32), ("timing", C.c_uint32), ("unloads", C.c_uint32), ("dropped", C.c_uint64),
                ("tail", C.c_uint64), ("_2", C.c_uint64 * 7), ("funcs", C.POINTER(Func)), ("nfuncs", C.c_uint32), ("nstreams", C.c_uint32),
                ("streams", C.POINTER(C.c_uint64)), ("gate", C.c_void_p), ("progress", C.c_void_p), ("_3", C.c_uint64 * 3)] + [
        (n, C.c_uint64) for n in ("copies", "graph_launches", "gated", "opaque_launches", "route_elf",
                                  "route_dlsym", "route_getproc", "route_runtime", "unhooked")] + [
        ("unhooked_names", C.c_char_p), ("_4", C.c_uint64 * 6), ("slot_ticket", C.POINTER(C.c_uint32)), ("arrived", C.c_void_p), ("refuse", C.c_uint32), ("inspect_n", C.c_uint32),
        ("granted", C.c_uint64), ("inspect_seq", C.c_uint64), ("inspect_addr", C.c_uint64 * 16384)] + [
        (n, C.c_uint64) for n in ("cpu_waits", "cpu_wait_ns", "grants_asked", "refused", "followed", "probes", "probe_word")] + [
        ("probing", C.c_uint32), ("_5", C.c_uint32), ("report_all", C.c_void_p), ("serve", C.c_void_p), ("synchronize_others", C.c_void_p),
        ("launch_head", C.c_uint64), ("launch_area", C.c_void_p), ("graph_bytes", C.c_uint64),
        ("timings_lost", C.c_uint64), ("ntimings", C.c_uint64), ("timings", C.c_uint64 * 2 * 1024), ("_6", C.c_uint64 * 3)]


def attach():
    """The shared state of the preloaded hook, or None when it refuses."""
    fn = C.CDLL(None).penstock_hook_attach
    fn.restype = C.POINTER(Shared)
    p = fn(ABI)
    return p.contents if p else None


def own(shared, slot, address, size, state=RESIDENT):
    shared.slot_state[slot] = state
    for block in range(address >> TABLE_SHIFT, ((address + size - 1) >> TABLE_SHIFT) + 1):
        shared.block_slot[block] = slot


def take(shared):
    """The next record as (kind, name or id, slots), or None."""
    entry = shared.ring[shared.tail % RING]
    if entry.turn != shared.tail + 1:
        return None
    assert entry.more == 0
    shared.tail += 1
    name = shared.funcs[entry.id].name.decode() if entry.kind == LAUNCH else entry.id
    return entry.kind, name, list(entry.slots[:entry.nslots])


class Driver:
    """libcuda through ctypes, which resolves by dlsym."""

    def __init__(self):
        self.lib = C.CDLL("libcuda.so.1")
        self.check("cuInit", 0)
        device, context = C.c_int(), C.c_void_p()
        self.check("cuDeviceGet", C.byref(device), 0)
        self.check("cuDevicePrimaryCtxRetain", C.byref(context), device)
        self.context = context
        self.enter()
        self.module, self.functions = C.c_void_p(), {}
        self.check("cuModuleLoadData", C.byref(self.module), b"image")

    def enter(self):
        """Gives the calling thread the context."""
        self.check("cuCtxSetCurrent", self.context)

    def call(self, name, *args):
        return getattr(self.lib, name)(*args)

    def check(self, name, *args):
        code = self.call(name, *args)
        assert code == 0, f"{name}: CUDA error {code}"

    def managed(self, size):
        p = C.c_uint64()
        self.check("cuMemAllocManaged", C.byref(p), C.c_size_t(size), 1)
        C.memset(p.value, 0, size)
        return p.value

    def launch(self, name, *params):
        """Launches on the default stream; each parameter is a ctypes value."""
        f = self.functions.get(name)
        if f is None:
            f = self.functions[name] = C.c_void_p()
            self.check("cuModuleGetFunction", C.byref(f), self.module, name.encode())
        array = (C.c_void_p * len(params))(*[C.cast(C.pointer(p), C.c_void_p) for p in params])
        return self.call("cuLaunchKernel", f, 1, 1, 1, 32, 1, 1, 0, None, array, None)

    def touch_add(self, address, count, inc):
        return self.launch("touch_add", C.c_uint64(address), C.c_uint64(count), C.c_uint32(inc))

    def sync(self):
        self.check("cuStreamSynchronize", None)


def word(address):
    return C.c_uint32.from_address(address).value
