//go:build linux

package bpf

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/trace"
)

// command is struct command of kmod-patch/guest/standin.h.
type command struct {
	Kind, Access      uint32
	Address, Bytes    uint64
	Batch, Cause      uint32
	Source, Target    uint32
	Client, Duplicate uint32
}

const (
	doGPUFault = iota + 1
	doCPUFault
	doMigration
	doEviction
)

// pager is a process with an address space of its own, which raises what it is told to.
type pager struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	base uint64
}

// TestMain makes this binary a pager when it is told so.
func TestMain(m *testing.M) {
	if os.Getenv("PENSTOCK_GUEST_PAGER") != "" {
		if err := servePager(); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func servePager() error {
	device, err := os.OpenFile("/dev/nvidia-uvm", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	fmt.Println("open")
	const bytesEach = 48
	for {
		var count uint32
		if err := binary.Read(os.Stdin, binary.LittleEndian, &count); err != nil {
			return device.Close() // told to end
		}
		b := make([]byte, int(count)*bytesEach)
		if _, err := io.ReadFull(os.Stdin, b); err != nil {
			return err
		}
		if _, err := device.Write(b); err != nil {
			return err
		}
		fmt.Println("done")
	}
}

func startPager(t *testing.T, base uint64) *pager {
	t.Helper()
	p := &pager{t: t, base: base, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), "PENSTOCK_GUEST_PAGER=1")
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.expect("open")
	return p
}

// copyDescriptor opens the pager's address space in this process too, for the test's duration.
func (p *pager) copyDescriptor() {
	p.t.Helper()
	pidfd, err := unix.PidfdOpen(p.pid(), 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	for fd := 3; fd < 64; fd++ {
		if link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p.pid(), fd)); err != nil || link != "/dev/nvidia-uvm" {
			continue
		}
		own, err := unix.PidfdGetfd(pidfd, fd, 0)
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { _ = unix.Close(own) })
		return
	}
	p.t.Fatal("the pager has no descriptor of the device")
}

func (p *pager) expect(word string) {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != word {
		p.t.Fatalf("pager %d said %q (%v), not %q", p.pid(), line, err, word)
	}
}

func (p *pager) pid() int { return p.cmd.Process.Pid }

func (p *pager) raise(commands ...command) {
	p.t.Helper()
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, uint32(len(commands)))
	_ = binary.Write(&b, binary.LittleEndian, commands)
	if _, err := p.in.Write(b.Bytes()); err != nil {
		p.t.Fatal(err)
	}
	p.expect("done")
}

func (p *pager) end() {
	p.t.Helper()
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("pager: %v", err)
	}
}

// script is one of everything: GPU faults of every access and client, a CPU
// fault of each access, a migration for each cause, an eviction.
func (p *pager) script(partitions bool) (raised []command, want []faults.Event) {
	gpu := uint32(2) // the second
	if partitions {
		gpu = 9
	}
	at := func(i int) uint64 { return p.base + uint64(i)<<12 }
	pid := uint32(p.pid())
	add := func(c command, e faults.Event) {
		e.Process, e.Address = pid, c.Address
		raised, want = append(raised, c), append(want, e)
	}
	access := []faults.Access{faults.AccessPrefetch, faults.AccessRead, faults.AccessWrite, faults.AccessAtomic, faults.AccessAtomic}
	for i := range 300 {
		c := command{Kind: doGPUFault, Address: at(i), Access: uint32(i % 5), Batch: uint32(1000 + i/256), Client: uint32(i % 2), Target: gpu}
		add(c, faults.Event{Kind: trace.KindFault, Access: access[i%5], GPU: 2, Batch: c.Batch, CopyEngine: i%2 == 1})
	}
	for i := range 2 {
		add(command{Kind: doCPUFault, Address: at(400 + i), Access: uint32(i)},
			faults.Event{Kind: trace.KindCPUFault, Access: []faults.Access{faults.AccessRead, faults.AccessWrite}[i]})
	}
	wantCauses := []trace.Cause{trace.CauseCoherence, trace.CauseCoherence, trace.CauseAccessCounters, trace.CausePrefetch, trace.CauseEviction,
		trace.CauseInvalid, trace.CauseUser, trace.CauseCoherence, trace.CauseUser}
	for i, cause := range wantCauses {
		bytes := uint64(i+1) << 12
		add(command{Kind: doMigration, Address: at(512 + 16*i), Bytes: bytes, Cause: uint32(i), Source: 0, Target: gpu},
			faults.Event{Kind: trace.KindMigration, Bytes: int64(bytes), Cause: cause, To: 2})
	}
	add(command{Kind: doEviction, Address: p.base + 4<<20, Bytes: 2 << 20, Cause: 4, Source: gpu, Target: 0},
		faults.Event{Kind: trace.KindMigration, Bytes: 2 << 20, Cause: trace.CauseEviction, From: 2})
	return raised, want
}

// drainAll reads until nothing more comes.
func drainAll(s *Source) (all []faults.Event) {
	for quiet := 0; quiet < 3; {
		before := len(all)
		if all = s.Drain(all); len(all) == before {
			quiet++
			time.Sleep(5 * time.Millisecond)
		}
	}
	return all
}

func mustOpen(t *testing.T, o Options) *Source {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// sameEvents compares one process's events in order; times must lie within the test and rise.
func sameEvents(t *testing.T, got, want []faults.Event, begin int64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d; the first: %+v", len(got), len(want), got[:min(len(got), 3)])
	}
	last := begin
	for i, e := range got {
		if e.BeginNanos < last-int64(time.Millisecond) || e.BeginNanos > faults.Clock() {
			t.Fatalf("event %d at %d, after one at %d", i, e.BeginNanos, last)
		}
		last = e.BeginNanos
		e.BeginNanos, e.EndNanos = 0, 0
		if e != want[i] {
			t.Fatalf("event %d: %+v, want %+v", i, e, want[i])
		}
	}
}

func ofProcess(all []faults.Event, pid int) (out []faults.Event) {
	for _, e := range all {
		if e.Process == uint32(pid) {
			out = append(out, e)
		}
	}
	return out
}

// TestInGuest runs in the guest of TestGuest, where a stand-in for nvidia-uvm is loaded.
func TestInGuest(t *testing.T) {
	standIn := os.Getenv("PENSTOCK_GUEST")
	if standIn == "" {
		t.Skip("runs in the guest that TestGuest boots")
	}
	major, _ := strconv.Atoi(standIn[:3])
	table := Options{Attach: AttachKprobe, NoBTF: true}
	partitions := major >= subProcessorsFrom
	switch standIn {
	case "580-locks":
		t.Run("mismatch", testMismatch)
	case "580-locks-btf":
		t.Run("kprobe", func(t *testing.T) { testAll(t, Options{Attach: AttachKprobe}, partitions) })
		t.Run("fentry", func(t *testing.T) { testAll(t, Options{Attach: AttachFentry}, partitions) })
	case "580-no-kprobes":
		// Hides what the kernel says of its kprobes.
		if err := unix.Mount("none", "/sys/bus/event_source/devices", "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Unmount("/sys/bus/event_source/devices", 0) }()
		if _, err := Open(Options{Attach: AttachKprobe}); err == nil || !strings.Contains(err.Error(), "no kprobes") {
			t.Errorf("kprobes are asked for where there are none: %v", err)
		}
		t.Run("default", func(t *testing.T) { testAll(t, Options{}, partitions) })
	case "580":
		t.Run("default", func(t *testing.T) { testAll(t, Options{}, partitions) })
		t.Run("process", func(t *testing.T) { testProcess(t, table) })
		t.Run("cgroup", func(t *testing.T) { testCgroup(t, table) })
		t.Run("lost", func(t *testing.T) { testLost(t, table) })
		t.Run("refused", testNoFentry)
		t.Run("command", testCommand)
	default:
		t.Run("kprobe", func(t *testing.T) { testAll(t, table, partitions) })
	}
}

// testAll: a process from before and one from after, both watched, every event right and in order.
func testAll(t *testing.T, o Options, partitions bool) {
	before := startPager(t, 0x7f00_0000_0000)
	before.copyDescriptor() // as a monitor has: this process must not be taken for the owner
	begin := faults.Clock()
	s := mustOpen(t, o)
	t.Logf("layout from %s; lacks %q", s.Layout(), s.Coverage().Lacks)
	if n := len(s.Coverage().Lacks); n != 1 { // what no way in can see
		t.Errorf("lacks %q", s.Coverage().Lacks)
	}
	after := startPager(t, 0x7e00_0000_0000)
	var events []faults.Event
	var want [2][]faults.Event
	for i, p := range []*pager{before, after} {
		raised, w := p.script(partitions)
		want[i] = w
		p.raise(raised...)
	}
	events = drainAll(s)
	for i, p := range []*pager{before, after} {
		sameEvents(t, ofProcess(events, p.pid()), want[i], begin)
	}
	if n := len(want[0]) + len(want[1]); len(events) != n {
		t.Errorf("%d events in all, want %d: %+v", len(events), n, ofProcess(events, 0))
	}
	var evictions, services int
	for _, sp := range s.Spans(nil) {
		if sp.EndNanos < sp.BeginNanos || sp.BeginNanos < begin {
			t.Errorf("span %+v", sp)
		}
		switch sp.Kind {
		case SpanService:
			services++
		case SpanEviction:
			if sp.Bytes != 2<<20 || sp.Address != before.base+4<<20 && sp.Address != after.base+4<<20 {
				t.Errorf("eviction %+v", sp)
			}
			evictions++
		}
	}
	if evictions != 2 || services != 2 {
		t.Errorf("%d evictions and %d runs of the fault handler, want 2 and 2", evictions, services)
	}
	before.end()
	after.end()
	drainAll(s)
	st := s.Stats()
	if st.Sent != st.Read || s.Lost().Total() != 0 || st.Mismatched != 0 || st.Filtered != 0 {
		t.Errorf("%+v", st)
	}
	t.Logf("%+v", st)
}

// testProcess: only the one asked for, from before or after.
func testProcess(t *testing.T, o Options) {
	wanted, other := startPager(t, 1<<40), startPager(t, 1<<41)
	o.Process = wanted.pid()
	s := mustOpen(t, o)
	later := startPager(t, 1<<42)
	drainAll(s) // decides
	for range 3 {
		for _, p := range []*pager{wanted, other, later} {
			p.raise(command{Kind: doGPUFault, Address: p.base, Access: 1, Target: 1})
		}
	}
	events := drainAll(s)
	for _, e := range events {
		if e.Process != 0 || e.Address != wanted.base {
			t.Errorf("%+v", e)
		}
	}
	if st := s.Stats(); len(events) != 3 || st.Filtered != 6 {
		t.Errorf("%d events, %+v", len(events), st)
	}
	for _, p := range []*pager{wanted, other, later} {
		p.end()
	}
}

// testCgroup: the processes of one container.
func testCgroup(t *testing.T, o Options) {
	const box = "/sys/fs/cgroup/box"
	if err := os.MkdirAll(box+"/inner", 0o755); err != nil {
		t.Skipf("no cgroups here: %v", err)
	}
	inside, outside := startPager(t, 1<<40), startPager(t, 1<<41)
	if err := os.WriteFile(box+"/inner/cgroup.procs", []byte(strconv.Itoa(inside.pid())), 0); err != nil {
		t.Fatal(err)
	}
	if group, err := CgroupOf(inside.pid()); err != nil || group != "/box/inner" {
		t.Errorf("group %q, %v", group, err)
	}
	o.Cgroup = box
	s := mustOpen(t, o)
	drainAll(s)
	for _, p := range []*pager{inside, outside} {
		p.raise(command{Kind: doGPUFault, Address: p.base, Access: 2, Target: 1})
	}
	events := drainAll(s)
	if len(events) != 1 || events[0].Process != uint32(inside.pid()) || events[0].Address != inside.base {
		t.Errorf("%+v", events)
	}
	inside.end()
	outside.end()
}

// testLost: a ring that is too small loses, and says how many.
func testLost(t *testing.T, o Options) {
	o.RingBytes = 1 << 16
	s := mustOpen(t, o)
	p := startPager(t, 1<<40)
	const many = 4000
	commands := make([]command, many)
	for i := range commands {
		commands[i] = command{Kind: doGPUFault, Address: p.base + uint64(i)<<12, Access: 1, Target: 1}
	}
	p.raise(commands...)
	events := drainAll(s)
	st := s.Stats()
	// Besides the faults, the birth of the space came through, and the span may have.
	if st.Full == 0 || st.Sent+st.Full != many+2 || st.Sent != st.Read || s.Lost().Driver != st.Full {
		t.Errorf("%d events, %+v", len(events), st)
	}
	p.end()
	if err := s.Close(); err != nil || s.Stats().Full != st.Full {
		t.Errorf("after Close: %+v, %v", s.Stats(), err)
	}
	t.Logf("%d of %d faults came, %d lost", len(events), many, st.Full)
}

// testMismatch: where the kernel's locks are larger than the table thinks, faults are right all the same and it is noticed.
func testMismatch(t *testing.T) {
	s := mustOpen(t, Options{Attach: AttachKprobe, NoBTF: true})
	p := startPager(t, 1<<40)
	p.raise(command{Kind: doGPUFault, Address: p.base, Access: 1, Target: 1})
	events := ofProcess(drainAll(s), p.pid())
	if len(events) != 1 || events[0].Address != p.base || s.Stats().Mismatched == 0 {
		t.Errorf("%+v, %+v", events, s.Stats())
	}
	p.end()
}

// testNoFentry: what is asked for and cannot be had is named.
func testNoFentry(t *testing.T) {
	_, err := Open(Options{Attach: AttachFentry})
	if err == nil || !strings.Contains(err.Error(), "type information") {
		t.Errorf("%v", err)
	}
}
