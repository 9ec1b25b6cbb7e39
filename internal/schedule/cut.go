package schedule

import (
	"fmt"
	"strings"

	"github.com/penstock-gpu/penstock/trace"
)

// largeBytes is what counts as a tensor here: smaller ones tell nothing of where a part ends.
const largeBytes = 1 << 20

// Cuts is an iteration taken apart.
type Cuts struct {
	log      *trace.Trace
	stays    []trace.Event   // allocations of what stays, in order
	staying  map[uint64]bool // by id
	forward  []trace.Event
	backward []trace.Event
	update   []trace.Event
	gradient map[uint64]bool // what backward makes for the update
	batch    map[uint64]bool // what is as large as the batch
}

// Cut takes the last iteration of a log apart. The backward part begins with the first kernel that says so, and the update
// after the last operation that uses what the forward part made.
func Cut(t *trace.Trace) (*Cuts, error) {
	all := t.Iterations()
	if len(all) == 0 {
		return nil, fmt.Errorf("trace %s has no full iteration to take apart", t.Name)
	}
	last := all[len(all)-1]
	c := &Cuts{log: t, staying: map[uint64]bool{}, gradient: map[uint64]bool{}, batch: map[uint64]bool{}}
	for _, e := range t.Events[:last.First] {
		switch e.Kind {
		case trace.KindAlloc:
			c.staying[e.Alloc] = true
		case trace.KindFree:
			delete(c.staying, e.Alloc)
		}
	}
	events := t.Events[last.First:last.End]
	for _, e := range events {
		if e.Kind == trace.KindFree {
			delete(c.staying, e.Alloc)
		}
	}
	for _, e := range t.Events[:last.First] {
		if e.Kind == trace.KindAlloc && c.staying[e.Alloc] {
			c.stays = append(c.stays, e)
		}
	}
	events = c.own(events)
	begin, end := parts(t, events)
	if begin < 0 {
		return nil, fmt.Errorf("trace %s names no kernel of a backward pass", t.Name)
	}
	c.forward, c.backward, c.update = events[:begin], events[begin:end], events[end:]
	c.classify()
	return c, nil
}

// own leaves out what an iteration does with what an earlier one made for it, and ends with what it leaves behind.
func (c *Cuts) own(events []trace.Event) []trace.Event {
	var out []trace.Event
	var born []uint64
	live := map[uint64]bool{}
	for _, e := range events {
		switch e.Kind {
		case trace.KindAlloc:
			live[e.Alloc] = true
			born = append(born, e.Alloc)
		case trace.KindFree:
			if !live[e.Alloc] {
				continue
			}
			delete(live, e.Alloc)
		case trace.KindLaunch, trace.KindCopy:
			e.Accesses = only(e.Accesses, func(id uint64) bool { return live[id] || c.staying[id] })
		default:
			continue
		}
		out = append(out, e)
	}
	for _, id := range born {
		if live[id] {
			out = append(out, trace.Event{Kind: trace.KindFree, Alloc: id})
		}
	}
	return out
}

// parts are where backward and update begin, -1 where no kernel is of a backward pass.
func parts(t *trace.Trace, events []trace.Event) (begin, end int) {
	begin = -1
	made := map[uint64]bool{}
	for i, e := range events {
		switch {
		case begin < 0 && e.Kind == trace.KindLaunch && strings.Contains(strings.ToLower(t.FunctionName(e.Function)), "backward"):
			begin = i
		case begin < 0 && e.Kind == trace.KindAlloc && e.Bytes >= largeBytes:
			made[e.Alloc] = true
		}
		for _, a := range e.Accesses {
			if made[a.Alloc] {
				end = i + 1
			}
		}
	}
	return begin, end
}

// classify finds what backward makes for the update, and what is of the batch: all else that an iteration makes before that.
func (c *Cuts) classify() {
	for _, e := range c.backward {
		if e.Kind == trace.KindAlloc {
			c.gradient[e.Alloc] = true
		}
	}
	used := map[uint64]bool{}
	for _, e := range c.update {
		for _, a := range e.Accesses {
			used[a.Alloc] = true
		}
	}
	for id := range c.gradient {
		if !used[id] {
			delete(c.gradient, id)
		}
	}
	for _, part := range [][]trace.Event{c.forward, c.backward} {
		for _, e := range part {
			if e.Kind == trace.KindAlloc && !c.gradient[e.Alloc] {
				c.batch[e.Alloc] = true
			}
		}
	}
}

// only are the accesses to some allocations.
func only(accesses []trace.Access, keep func(id uint64) bool) []trace.Access {
	var out []trace.Access
	for _, a := range accesses {
		if keep(a.Alloc) {
			out = append(out, a)
		}
	}
	return out
}

// short lets what a part makes die after its last use in it: nothing comes that would need it.
func short(part []trace.Event) []trace.Event {
	last, freed := map[uint64]int{}, map[uint64]bool{}
	for i, e := range part {
		switch e.Kind {
		case trace.KindAlloc:
			last[e.Alloc] = i
		case trace.KindFree:
			freed[e.Alloc] = true
		}
		for _, a := range e.Accesses {
			if _, made := last[a.Alloc]; made {
				last[a.Alloc] = i
			}
		}
	}
	var out []trace.Event
	for i, e := range part {
		out = append(out, e)
		ends := e.Accesses
		if e.Kind == trace.KindAlloc {
			ends = []trace.Access{{Alloc: e.Alloc}}
		}
		for _, a := range ends {
			if at, made := last[a.Alloc]; made && at == i && !freed[a.Alloc] {
				freed[a.Alloc] = true
				out = append(out, trace.Event{Kind: trace.KindFree, Alloc: a.Alloc})
			}
		}
	}
	return out
}
