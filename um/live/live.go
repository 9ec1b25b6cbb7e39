package live

import (
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// Live is the engine in a process. See the package comment.
type Live struct {
	*process.Process
	config Config
	why    string // the engine was chosen; "" when there was no choice

	plain      plainPool   // has a lock of its own
	overflowed atomic.Bool // the card was full once
	besides    besides

	// plainMu guards private pools and the opening of the arena. Like the lock of
	// the pool it is held across driver calls that may wait for another thread of the
	// job, so the engine's threads take neither.
	plainMu    sync.Mutex
	privates   map[PoolID]*private
	active     atomic.Pointer[private] // where allocations go; nil for the usual places
	anyPrivate atomic.Bool             // there are private pools

	speed speed
}

// New starts the engine. hookOrNil is nil when no launch hook is loaded: then
// nothing can be foreseen, and managed memory moves by faults alone.
func New(c Config, d cuda.Driver, hookOrNil process.Hook, log *zap.Logger) (*Live, error) {
	if err := d.BindThread(); err != nil {
		return nil, err
	}
	if hookOrNil != nil {
		hookOrNil.Serve()
	}
	free, total, err := d.MemInfo()
	if err != nil {
		return nil, err
	}
	if err := c.validate(total); err != nil {
		return nil, err
	}
	chosen, why, err := c.choose(d.Capabilities(), hookOrNil, process.AvailableHostBytes())
	if err != nil {
		return nil, err
	}
	l := &Live{config: c, why: why, privates: map[PoolID]*private{}}
	l.Process = process.New(process.Config{
		Policy: c.Policy, BudgetBytes: c.BudgetBytes, HostBudgetBytes: c.HostBudgetBytes, LocalProcesses: c.LocalProcesses,
		LookaheadBytes: c.LookaheadBytes, Timeline: c.Timeline, Sink: c.Sink,
	}, d, hookOrNil, log)
	l.Budget = c.BudgetBytes
	if l.Budget == 0 {
		l.Budget = max(minBudgetBytes, free-reserveBytes)
	}
	l.PlainBudget.Store(l.Budget)
	l.Engine = engines[chosen](l)
	if l.Hook != nil && l.Sink != nil {
		l.Hook.SetStamps(true)
		l.Hook.SetTiming(true)
	}
	if err := l.openPlain(); err != nil {
		return nil, err
	}
	if err := l.Engine.Start(); err != nil {
		return nil, err
	}
	l.serveFront()
	if !c.PlainOnly {
		go l.followSpeed()
	}
	return l, nil
}
