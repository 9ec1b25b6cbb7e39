package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// ShortWait is what the engine looks away for while work is queued.
const ShortWait = 10 * time.Microsecond

// FinePauses makes short pauses of the calling thread, which must be locked, end
// in time: by default the kernel adds up to 50 us.
func FinePauses() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0) // a refusal costs precision only
}

// PauseAfter is how long the engine may look away when nothing has moved for so long while a launch waits, or nothing at all has
// happened: what comes next is noticed later by less than a fiftieth, and a wait of seconds takes no processor.
func PauseAfter(idle time.Duration) time.Duration {
	return min(max(ShortWait, idle/64), time.Millisecond)
}

// Pause stops a locked thread for a short time.
func Pause(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // woken early by a signal is as good
}
