package main

import (
	"fmt"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hostmem"
	"github.com/penstock-gpu/penstock/internal/ranks"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/um/explicit"
)

// pinningFacts are what decides how much host memory can be pinned, and how fast.
type pinningFacts struct {
	AvailableBytes int64
	LimitedBy      string
	Processes      int    // of the job on this host, as the environment says; they share it
	LockLimitBytes int64  // RLIMIT_MEMLOCK; math.MaxInt64 is none
	HugePages      string // always, madvise or never; "" when the kernel does not say
}

func (realMachine) pinning() (pinningFacts, error) {
	m, err := hostmem.Available()
	if err != nil {
		return pinningFacts{}, err
	}
	f := pinningFacts{AvailableBytes: m.AvailableBytes, LimitedBy: m.LimitedBy, Processes: ranks.FromEnviron(os.Environ()).Local, LockLimitBytes: math.MaxInt64}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err == nil && limit.Cur < math.MaxInt64 {
		f.LockLimitBytes = int64(limit.Cur)
	}
	if b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled"); err == nil {
		f.HugePages = chosenWord(string(b))
	}
	return f, nil
}

// share is what each process of the job can have.
func (f pinningFacts) share() int64 { return f.AvailableBytes / int64(max(1, f.Processes)) }

// chosenWord is the word in brackets, as the kernel marks the choice that holds.
func chosenWord(text string) string {
	_, rest, _ := strings.Cut(text, "[")
	word, _, ok := strings.Cut(rest, "]")
	if !ok {
		return ""
	}
	return word
}

// checkPinning describes the host memory that the explicit engine would pin.
func checkPinning(m doctorMachine) ([]doctorCheck, pinningFacts) {
	pinned := doctorCheck{Name: "pinned memory", Status: checkOK}
	f, err := m.pinning()
	if err != nil {
		pinned.Status, pinned.Found, pinned.Do = checkWarn, "not known ("+err.Error()+")", "mount /proc"
		return []doctorCheck{pinned}, f
	}
	// The driver does not count what it pins against the limit (os-mlock.c of the
	// open kernel modules pins pages and looks at no limit).
	lock := "no limit on locked memory"
	if f.LockLimitBytes < math.MaxInt64 {
		lock = fmt.Sprintf("the limit on locked memory, %s, does not hold for the GPU driver", size.Text(f.LockLimitBytes))
	}
	pinned.Found = fmt.Sprintf("%s can be had (%s); %s", size.Text(f.AvailableBytes), f.LimitedBy, lock)
	if f.Processes > 1 {
		pinned.Found += fmt.Sprintf("; %s for each of %d processes (LOCAL_WORLD_SIZE, WORLD_SIZE)", size.Text(f.share()), f.Processes)
	}
	if f.share() < explicit.LeastHostBytes {
		pinned.Status, pinned.Do = checkWarn, "free some: the explicit engine keeps in it what does not fit on the GPU"
	}
	huge := doctorCheck{Name: "huge pages", Status: checkOK, Found: f.HugePages + " (transparent)"}
	switch f.HugePages {
	case "always", "madvise":
	case "never":
		huge.Status, huge.Do = checkWarn, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or pinning takes twice as long"
	default:
		huge.Status, huge.Found, huge.Do = checkWarn, "not known: the kernel does not say", "none needed; pinning may take twice as long"
	}
	return []doctorCheck{pinned, huge}, f
}

// explicitAnswer says why the explicit engine cannot run on the default device; "" when it can.
func explicitAnswer(surveys []cuda.Survey, f pinningFacts, checks []doctorCheck) string {
	for _, c := range checks {
		if c.Required && c.Status == checkMissing && !strings.HasPrefix(c.Name, managedMemory) || c.Name == launchHook && c.Status != checkOK {
			return c.Name + ": " + c.Found
		}
	}
	if len(surveys) == 0 {
		return "no device was found"
	}
	if all := explicit.MachineObstacles(surveys[0].Capabilities, f.share(), f.Processes); len(all) > 0 {
		return string(all[0].Need) + ": " + all[0].What
	}
	return ""
}
