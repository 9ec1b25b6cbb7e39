package cuda

import "sync"

// managedLedger counts live managed memory against a limit. Bytes are reserved
// before the driver is asked, so that concurrent allocations cannot pass the
// limit together, and an address stays counted until the driver freed it.
type managedLedger struct {
	limitBytes int64 // 0: none

	mu        sync.Mutex
	liveBytes int64
	sizes     map[Ptr]int64
}

func (l *managedLedger) reserve(bytes int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limitBytes > 0 && bytes > l.limitBytes-l.liveBytes {
		return &ManagedLimitError{RequestedBytes: bytes, LiveBytes: l.liveBytes, LimitBytes: l.limitBytes}
	}
	l.liveBytes += bytes
	return nil
}

func (l *managedLedger) cancel(bytes int64) {
	l.mu.Lock()
	l.liveBytes -= bytes
	l.mu.Unlock()
}

func (l *managedLedger) commit(p Ptr, bytes int64) {
	l.mu.Lock()
	if l.sizes == nil {
		l.sizes = make(map[Ptr]int64)
	}
	l.sizes[p] = bytes
	l.mu.Unlock()
}

// take removes an address before it is freed: once the driver has freed it,
// another thread may be given the same address.
func (l *managedLedger) take(p Ptr) (bytes int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes, ok = l.sizes[p]
	delete(l.sizes, p)
	return bytes, ok
}

func (l *managedLedger) live() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.liveBytes
}
