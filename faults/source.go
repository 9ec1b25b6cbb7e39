package faults

// Source is where events come from: the driver's event queue in this process
// (Open) or in another (Attach), kernel probes, or a recording.
//
// Its methods may be called from any goroutine. After Close the counts of Lost
// stay readable, and Drain gives nothing.
type Source interface {
	// Drain appends the events that have arrived to dst, without waiting for more.
	Drain(dst []Event) []Event
	// Flush makes events of work that is already done arrive, where they would else be held back.
	Flush() error
	// Lost counts what never arrives.
	Lost() Lost
	// Coverage says what the source can see and what not. It does not change.
	Coverage() Coverage
	Close() error
}

// Lost counts events that happened and that Drain will never return.
type Lost struct {
	Driver uint64 // the producing side found its buffer full
	Reader uint64 // they arrived, but made no sense to this package
}

// Total is the sum of both sides.
func (l Lost) Total() uint64 { return l.Driver + l.Reader }

// Coverage is what a source can see.
type Coverage struct {
	Source string   // "uvm-tools", "ebpf", "recording"
	Kinds  Kinds    // of event that it delivers
	System bool     // of all processes, not of one
	Lacks  []string // what it cannot see, a line each
}

var (
	_ Source = (*Queue)(nil)
	_ Source = (*Group)(nil)
	_ Source = (*Recording)(nil)
)
