package correlate

import (
	"slices"
	"testing"
)

// passes is a job that makes an activation for each of so many layers and uses them in reverse. So many activations share a
// range, the first of them fewer.
type passes struct {
	t      *testing.T
	h      *History
	layers int
	groups []InstanceID
	acts   []InstanceID
}

// in is the group that a layer's activation is in.
func (p *passes) in(layer, together int) int { return (layer + 1) / together }

func (p *passes) forward(together int, size int64) {
	p.groups, p.acts = nil, make([]InstanceID, p.layers)
	for i := range p.layers {
		k := p.in(i, together)
		if k == len(p.groups) {
			p.groups = append(p.groups, p.h.Group())
		}
		p.acts[i] = p.h.AllocIn(p.groups[k], size+int64(i%7))
		p.h.Observe(uint64(100+i), []InstanceID{p.groups[k]})
	}
}

func (p *passes) backward(together int) {
	for i := p.layers - 1; i >= 0; i-- {
		k := p.in(i, together)
		p.h.Observe(uint64(1000+i), []InstanceID{p.groups[k]})
		p.h.Free(p.acts[i])
		if i == 0 || p.in(i-1, together) < k {
			p.h.Free(p.groups[k])
		}
	}
}

// TestGroups: a range is next used when the first of what lives in it is, whatever shared ranges before, and is let alone until
// then; what is in it dies when it did.
func TestGroups(t *testing.T) {
	const layers = 120
	p := &passes{t: t, h: NewHistory(HistoryConfig{}), layers: layers}
	var instances int64
	for n := range 12 {
		together := 3 + n%4
		p.forward(together, int64(1000*(n+1)))
		if n == 6 {
			instances = p.h.Stats().InstancesLive
		}
		if n < 4 {
			p.backward(together)
			continue
		}
		if !p.h.Varies() || !p.h.Locked() {
			t.Fatalf("iteration %d: sizes change: %t, locked: %t", n, p.h.Varies(), p.h.Locked())
		}
		now := p.h.Now()
		for k, id := range p.groups {
			var members []int
			for i := range layers {
				if p.in(i, together) == k {
					members = append(members, i)
				}
			}
			// The backward pass of a layer i comes layers-1-i operations from now. All that lay beside it then counts as used with it.
			used, died := now+int64(layers-1-slices.Max(members)), now+int64(layers-slices.Min(members))
			const beside = 6
			if next := p.h.NextUse(id); next > used || next < used-beside {
				t.Fatalf("iteration %d: group %d is next used at %d, want %d", n, k, next-now, used-now)
			}
			if death := p.h.Death(id); death != died {
				t.Fatalf("iteration %d: group %d dies at %d, want %d", n, k, death-now, died-now)
			}
		}
		if got := p.h.Lasts(1); got != Unknown {
			t.Errorf("nothing is allocated now, but lasts for %d operations", got)
		}
		p.backward(together)
	}
	if p.h.live != 0 {
		t.Errorf("%d bytes are alive", p.h.live)
	}
	if now := p.h.Stats().InstancesLive; now > 3*instances {
		t.Errorf("%d lives are remembered, and were %d half way", now, instances)
	}
}

// TestGroupRests: it is let alone from the last use of all that lives in it until the first use after that.
func TestGroupRests(t *testing.T) {
	const layers, together = 120, 4
	p := &passes{t: t, h: NewHistory(HistoryConfig{}), layers: layers}
	for n := range 8 {
		p.forward(together, int64(1000*(n+1)))
		if n < 7 {
			p.backward(together)
		}
	}
	if _, _, ok := p.h.Rest(p.groups[2], 64); ok {
		t.Error("a rest is foretold that has begun")
	}
	p.backward(together)
	// As the next iteration begins.
	first := p.h.Group()
	for i := range 3 {
		p.h.AllocIn(first, 100_000+int64(i))
		p.h.Observe(uint64(100+i), []InstanceID{first})
	}
	last := p.h.AllocIn(first, 100_003)
	now := p.h.Now()
	from, next, ok := p.h.Rest(first, 64)
	if !ok || from < now || from > now+together || next < now+layers || next > now+2*layers {
		t.Errorf("it rests from %d to %d from now, %t", from-now, next-now, ok)
	}
	if id := p.h.instance(last); id.group == nil || !slices.Contains(id.group.members, last) {
		t.Error("what is alive is in no group")
	}
	p.h.Free(last)
	p.h.Free(last)
	if slices.Contains(p.h.groupOf(first).members, last) {
		t.Error("what is dead is in a group")
	}
}

// TestEmptyGroup: nothing is known of a range that nothing is in, and nothing happens when it is used all the same.
func TestEmptyGroup(t *testing.T) {
	p := newTape(HistoryConfig{})
	for range 3 {
		p.iteration(20, never, never, sizes(4))
	}
	g := p.h.Group()
	p.h.Touch(g, p.h.Now()-1)
	if next := p.h.NextUse(g); next != Never {
		t.Errorf("it is used at %d", next)
	}
	if _, _, ok := p.h.Rest(g, 1); ok {
		t.Error("it rests")
	}
	bytes := p.h.live
	p.h.Free(g)
	p.h.Free(g)
	if p.h.live != bytes {
		t.Error("bytes were freed that were never allocated")
	}
	if other := p.h.Group(); other != g {
		t.Errorf("%d is not used again, %d is", g, other)
	}
}
