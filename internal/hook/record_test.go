package hook

import (
	"slices"
	"testing"
	"unsafe"
)

// recordedHead is psk_launch as C lays it out.
type recordedHead struct {
	turn, function uint64
	grid, block    [3]uint32
	cluster        [3]uint32
	policy         uint32
	shared         uint32
	nparams, bytes uint32
	_              uint32
}

// TestLaunch: a recorded launch is read whole, and not at all once others may have been recorded over it.
func TestLaunch(t *testing.T) {
	const units, unit = 1 << 17, 64
	x, h := attached(t)
	area := make([]byte, units*unit)
	x.s.launchArea = &area[0]
	const at = 5*units + 7 // in the sixth turn of the area
	head := (*recordedHead)(unsafe.Pointer(&area[7*unit]))
	*head = recordedHead{turn: at + 1, function: 0xf00, grid: [3]uint32{4, 5, 6}, block: [3]uint32{128, 1, 1}, cluster: [3]uint32{2, 1, 1}, policy: 1, shared: 48, nparams: 3, bytes: 24}
	starts := []uint32{0, 8, 16}
	copy(unsafe.Slice((*uint32)(unsafe.Pointer(&area[7*unit+int(unsafe.Sizeof(*head))])), 3), starts)
	params := area[7*unit+int(unsafe.Sizeof(*head))+16:][:24]
	for i := range params {
		params[i] = byte(i + 1)
	}
	r := &Record{Recorded: uint32(at+1) & 0xffffffff}
	x.s.launchHead = at + 3
	l := h.Launch(r)
	if l == nil {
		t.Fatal("a recorded launch is not found")
	}
	if l.Function != 0xf00 || l.Grid != head.grid || l.Block != head.block || l.Cluster != head.cluster || l.ClusterPolicy != 1 || l.SharedBytes != 48 || !slices.Equal(l.Starts, starts) || !slices.Equal(l.Params, params) {
		t.Errorf("%+v", l)
	}
	if h.Launch(&Record{}) != nil || h.Launch(&Record{Recorded: r.Recorded + 1}) != nil {
		t.Error("a launch that was not recorded is found")
	}
	x.s.launchHead = at + units + 1
	if h.Launch(r) != nil {
		t.Error("one is found that may have been written over")
	}
	head.turn, x.s.launchHead = at+units+1, at+units+3
	if h.Launch(r) != nil {
		t.Error("one is found that has been")
	}
	h.SetRecord(0, []uint32{16})
	h.SetRecord(1, []uint32{16})
	if x.funcs[0].record != 0 { // there is none
		t.Error("a function that does not exist is recorded")
	}
	x.s.nfuncs = 1
	if h.SetRecord(0, nil); x.funcs[0].record != 1 {
		t.Error("a function is not recorded")
	}
	if h.SetRecord(0, []uint32{16, 400}); x.funcs[0].record != 3 || x.funcs[0].written != [MostWritten]uint16{16, 400} {
		t.Errorf("what a function writes to is not known: %+v", x.funcs[0])
	}
	if h.EndRecord(0); x.funcs[0].record != 0 {
		t.Error("a function is recorded still")
	}
	for flags, want := range map[int]int{0: 0, FlagAccess: 0, FlagAccess | FlagHasDst: 1, FlagAccess | FlagHasDst | 2<<13: 3} {
		if n := (&Record{Flags: flags}).Written(); n != want {
			t.Errorf("%#x: %d are written to, want %d", flags, n, want)
		}
	}
	if x.s.unloads = 3; h.Unloads() != 3 {
		t.Errorf("%d unloads, want 3", h.Unloads())
	}
}
