package trace

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"
)

// makeSnapshot is Python that pickles what torch.cuda.memory._snapshot() documents:
// an allocator with one block from before the history and one of each fate in it.
const makeSnapshot = `
import pickle, sys
base = 0x7f0000000000
frames = [{"filename": "train.py", "line": 7, "name": "step"}]
def entry(action, addr, size, time, stream=0):
    key = "device_free" if action == "oom" else "addr"
    return {"action": action, key: addr, "size": size, "stream": stream, "time_us": 1700000000000000 + time, "frames": frames, "compile_context": "N/A"}
history = [
    entry("alloc", base + 4096, 1000, 0),
    entry("free_requested", base, 600, 5),
    entry("free_completed", base, 600, 10),
    entry("oom", 123, 1 << 40, 15),
    entry("segment_alloc", base + (4 << 20), 20 << 20, 20, 7),
    entry("alloc", base + (4 << 20), 5 << 20, 21, 7),
    entry("snapshot", 0, 0, 22),
    entry("free_requested", base + 4096, 1000, 25),
    entry("free_completed", base + 4096, 1000, 30),
    entry("segment_free", base + (60 << 20), 2 << 20, 35),
]
segments = [
    {"device": 1, "address": base, "total_size": 2 << 20, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
     "allocated_size": 512, "active_size": 512, "requested_size": 300, "blocks": [
        {"address": base, "size": 8192, "requested_size": 0, "state": "inactive", "frames": []},
        {"address": base + 8192, "size": 512, "requested_size": 300, "state": "active_allocated", "frames": frames},
        {"address": base + 8704, "size": (2 << 20) - 8704, "requested_size": 0, "state": "inactive", "frames": []}]},
    {"device": 1, "address": base + (4 << 20), "total_size": 20 << 20, "stream": 7, "segment_type": "large", "blocks": [
        {"size": 5 << 20, "requested_size": 5 << 20, "state": "active_allocated"},
        {"size": 15 << 20, "state": "inactive"}]},
    {"device": 0, "address": 1, "total_size": 2 << 20, "blocks": [{"size": 512, "state": "active_allocated", "address": 1}]},
]
sys.stdout.buffer.write(pickle.dumps({"segments": segments, "device_traces": [[], history], "allocator_settings": {"expandable_segments": False}}, int(sys.argv[1])))
`

func snapshotFile(t testing.TB, protocol int) []byte {
	t.Helper()
	out, err := exec.Command("python3", "-c", makeSnapshot, fmt.Sprint(protocol)).Output()
	if err != nil {
		t.Skipf("no python3: %v", err)
	}
	return out
}

func TestSnapshot(t *testing.T) {
	const base, us = 0x7f0000000000, time.Microsecond
	want := []Event{
		{Kind: KindAlloc, Alloc: 1, Bytes: 600, Address: base},
		{Kind: KindAlloc, Alloc: 2, Bytes: 300, Address: base + 8192},
		{Kind: KindAlloc, Alloc: 3, Bytes: 1000, Address: base + 4096},
		{Kind: KindFree, Alloc: 1, Time: 10 * us},
		{Kind: KindAlloc, Alloc: 4, Bytes: 5 << 20, Address: base + 4<<20, Stream: 7, Time: 21 * us},
		{Kind: KindFree, Alloc: 3, Time: 30 * us},
	}
	for protocol := 2; protocol <= 5; protocol++ {
		data := snapshotFile(t, protocol)
		var packed bytes.Buffer
		zw := gzip.NewWriter(&packed)
		zw.Write(data)
		zw.Close()
		for name, file := range map[string][]byte{"plain": data, "gzip": packed.Bytes()} {
			tr, err := Parse("run.pickle", file)
			if err != nil {
				t.Errorf("protocol %d, %s: %v", protocol, name, err)
				continue
			}
			if tr.Name != "run" && name == "plain" || !strings.Contains(tr.Header.Source, "device 1") {
				t.Errorf("protocol %d: name %q, source %q", protocol, tr.Name, tr.Header.Source)
			}
			if !reflect.DeepEqual(tr.Events, want) {
				t.Errorf("protocol %d: %+v, want %+v", protocol, tr.Events, want)
			}
			if r := []Reserved{{0, 4 << 20}, {4, 24 << 20}, {6, 22 << 20}}; !reflect.DeepEqual(tr.Reserved, r) || tr.Header.ReportedReservedBytes != 24<<20 {
				t.Errorf("protocol %d: reserved %v, want %v", protocol, tr.Reserved, r)
			}
		}
	}
}

func TestSnapshotRefuses(t *testing.T) {
	good := snapshotFile(t, 4)
	var damage *DamageError
	if _, err := Parse("x", good[:len(good)/2]); !errors.As(err, &damage) || !errors.Is(err, ErrTruncated) {
		t.Errorf("truncated: %v", err)
	}
	if _, err := Parse("x", []byte("\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.")); !errors.As(err, &damage) || !strings.Contains(err.Error(), "run code") {
		t.Errorf("code: %v", err)
	}
	if _, err := Parse("x", []byte("\x80\x04}.")); !errors.Is(err, ErrNotTrace) {
		t.Errorf("another pickle: %v", err)
	}
	// One list named a thousand times in a list named a thousand times must not be walked a million times for nothing.
	big := bytes.ReplaceAll(good, []byte("total_size"), []byte("total_sice"))
	if _, err := Parse("x", big); !errors.As(err, &damage) {
		t.Errorf("renamed member: %v", err)
	}
}

const rmmSample = rmmHeading + `
1,23:59:59:900000,allocate,0x7f0000000000,1024,0x0
1,23:59:59:950000,allocate,0x7f0000000400,0,0x2
2,00:00:00:000001,allocate failure,(nil),99999999,0x0
2,00:00:00:100000,allocate,0x7f0000000400,10,0x2
1,00:00:00:200000,free,0x7f0000000000,1024,0x0
1,00:00:00:200000,free,0x7f00deadbeef,1024,0x0
`

func TestRMMLog(t *testing.T) {
	tr, err := Parse("log.csv", []byte(strings.ReplaceAll(rmmSample, "\n", "\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	want := []Event{
		{Kind: KindAlloc, Alloc: 1, Bytes: 1024, Address: 0x7f0000000000},
		{Kind: KindAlloc, Alloc: 2, Address: 0x7f0000000400, Stream: 2, Time: 50 * time.Millisecond},
		{Kind: KindFree, Alloc: 2, Time: 200 * time.Millisecond},
		{Kind: KindAlloc, Alloc: 3, Bytes: 10, Address: 0x7f0000000400, Stream: 2, Time: 200 * time.Millisecond},
		{Kind: KindFree, Alloc: 1, Time: 300 * time.Millisecond},
	}
	if tr.Name != "log" || !reflect.DeepEqual(tr.Events, want) {
		t.Errorf("%+v, want %+v", tr.Events, want)
	}
	for text, want := range map[string]string{
		rmmHeading + "\n": "no events",
		rmmHeading + "\n1,12:00:00:0,allocate,0x1,5":               "cut short",
		rmmHeading + "\n1,12:00:00:0,allocate,0x1,5\n":             "5 columns",
		rmmHeading + "\n1,12:00:00:0,allocate,0xg,5,0x0\n":         "malformed",
		rmmHeading + "\n1,noon,allocate,0x1,5,0x0\n":               "time",
		rmmHeading + "\n1,12:00:00:0,move,0x1,5,0x0\n":             "action",
		rmmSample + "1,12:00:00:0,allocate,0x7f0000000400,7,0x0\n": "second time",
	} {
		_, err := Parse("x", []byte(text))
		var damage *DamageError
		if !errors.As(err, &damage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzImport(f *testing.F) {
	f.Add([]byte(rmmSample))
	if _, err := exec.LookPath("python3"); err == nil {
		f.Add(snapshotFile(f, 2))
		f.Add(snapshotFile(f, 4))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := load("x", bytes.NewReader(data), 1<<20)
		if tr == nil {
			return
		}
		if bad := tr.Validate(); bad != nil {
			t.Fatalf("%v, but %v", err, bad)
		}
		for i, r := range tr.Reserved {
			if r.Bytes < 0 || r.Event > len(tr.Events) || i > 0 && r.Event <= tr.Reserved[i-1].Event {
				t.Fatalf("reserved %v", tr.Reserved)
			}
		}
	})
}
