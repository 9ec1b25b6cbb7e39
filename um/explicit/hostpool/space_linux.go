package hostpool

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/size"
)

// addresses are reserved addresses of this process.
type addresses struct {
	mapped unsafe.Pointer
	bytes  uintptr        // mapped
	start  unsafe.Pointer // the first multiple of Granularity
}

func reserve(bytes int64) (space, error) {
	a := &addresses{bytes: uintptr(bytes) + Granularity}
	var err error
	a.mapped, err = unix.MmapPtr(-1, 0, nil, a.bytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("cannot reserve %s of addresses for the host budget (a limit such as `ulimit -v`?): %w", size.Text(bytes), err)
	}
	a.start = unsafe.Add(a.mapped, -uintptr(a.mapped)%Granularity)
	// A child's copy-on-write would leave the device with pages that are not the
	// parent's any more, or copy all that is pinned; a core dump has no use for it.
	for _, advice := range []int{unix.MADV_DONTFORK, unix.MADV_DONTDUMP} {
		if err := unix.Madvise(unsafe.Slice((*byte)(a.start), bytes), advice); err != nil {
			_ = a.release()
			return nil, fmt.Errorf("cannot keep the host memory from children: madvise: %w", err)
		}
	}
	return a, nil
}

func (a *addresses) base() cuda.Ptr { return cuda.Ptr(uintptr(a.start)) }

func (a *addresses) release() error { return unix.MunmapPtr(a.mapped, a.bytes) }

// slice is the memory of an extent.
func (a *addresses) slice(e Extent) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(a.start, int64(e.Base-a.base()))), e.Bytes)
}

func (a *addresses) populate(e Extent, threads int) error {
	all := a.slice(e)
	if err := unix.Mprotect(all, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("mprotect: %w", err)
	}
	// A hint: without huge pages everything works, slower.
	_ = unix.Madvise(all, unix.MADV_HUGEPAGE)
	// Each thread makes the pages of its share, in whole huge pages.
	share := int(roundUp((e.Bytes + int64(threads) - 1) / int64(threads)))
	var group sync.WaitGroup
	failures := make([]error, (len(all)+share-1)/share)
	for i := range failures {
		part := all[i*share : min((i+1)*share, len(all))]
		group.Go(func() { failures[i] = touch(part) })
	}
	group.Wait()
	for _, err := range failures {
		if err != nil {
			a.drop(e)
			return fmt.Errorf("no memory for %s: %w", size.Text(e.Bytes), err)
		}
	}
	return nil
}

// touch makes the pages of b exist. The kernel does that in one call since Linux
// 5.14, with an error instead of a signal when it cannot.
func touch(b []byte) error {
	for {
		switch err := unix.Madvise(b, unix.MADV_POPULATE_WRITE); {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.EINVAL): // an older kernel
			for i := 0; i < len(b); i += 4096 {
				b[i] = 0
			}
			return nil
		default:
			return err
		}
	}
}

// drop gives the pages of an extent back. Its addresses stay.
func (a *addresses) drop(e Extent) {
	b := a.slice(e)
	_ = unix.Madvise(b, unix.MADV_DONTNEED)
	_ = unix.Mprotect(b, unix.PROT_NONE)
}

func warnWithoutHugePages(log *zap.Logger) {
	b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err == nil && strings.Contains(string(b), "[never]") {
		log.Warn("transparent huge pages are off, so that pinning host memory takes twice as long: " +
			"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
	}
}
