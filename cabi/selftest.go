package main

/*
#cgo CFLAGS: -I${SRCDIR}/hook
#include "selftest.h"
*/
import "C"

import (
	"strings"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
)

// selfTestRoute is one way to come by the driver's functions. Its JSON is read
// by `penstock doctor`.
type selfTestRoute struct {
	Name     string   `json:"name"`
	Launches int      `json:"launches"` // made
	Seen     int      `json:"seen"`     // of them, by the hook
	Refused  int      `json:"refused,omitempty"`
	Missed   []string `json:"missed,omitempty"` // functions whose launches were not seen
}

// selfTest makes a launch by every route that this process has. words gives
// device-accessible memory for the runtime's own calls; nil leaves them out.
func selfTest(shared unsafe.Pointer, words func() (cuda.Ptr, func(), error)) []selfTestRoute {
	const most = 16
	var routes [most]C.psk_selftest_route
	var word cuda.Ptr
	if words != nil && C.psk_selftest_runtime_loaded() != 0 {
		if p, release, err := words(); err == nil {
			word = p
			defer release()
		}
	}
	n := C.psk_selftest((*C.psk_shared)(shared), C.uint64_t(word), &routes[0], most)
	var all []selfTestRoute
	for _, r := range routes[:n] {
		all = append(all, selfTestRoute{
			Name: C.GoString(&r.name[0]), Launches: int(r.made), Seen: int(r.seen), Refused: int(r.refused),
			Missed: strings.Fields(C.GoString(&r.missed[0])),
		})
	}
	return all
}

// missedRoutes says in words which launches the hook does not see.
func missedRoutes(routes []selfTestRoute) (missed []string) {
	for _, r := range routes {
		if len(r.Missed) > 0 {
			missed = append(missed, r.Name+" ("+strings.Join(r.Missed, ", ")+")")
		}
	}
	return missed
}

// pinnedWord is memory for selfTest.
func pinnedWord(d cuda.Driver) func() (cuda.Ptr, func(), error) {
	return func() (cuda.Ptr, func(), error) {
		p, err := d.HostAlloc(4096)
		return p, func() { _ = d.HostFree(p) }, err // a page that stays is no harm
	}
}
