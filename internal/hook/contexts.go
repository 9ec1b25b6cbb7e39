package hook

/*
#include "penstock_hook.h"
static void psk_serve(psk_shared *s) {
	if (s->serve) s->serve();
}
static uint32_t psk_synchronize_others(psk_shared *s) { return s->synchronize_others ? s->synchronize_others() : 0; }
*/
import "C"

import "github.com/penstock-gpu/penstock/cuda"

// Serve says that the calling thread's context is the engine's: the default streams of others are then told from
// its. It comes before SetMode.
func (h *Shared) Serve() { C.psk_serve(h.s) }

// SynchronizeOthers waits for all contexts of the process beside the engine's. Nothing is done where there are none.
func (h *Shared) SynchronizeOthers() error {
	if code := C.psk_synchronize_others(h.s); code != 0 {
		return cuda.NewError(int(code), "cuCtxSynchronize")
	}
	return nil
}
