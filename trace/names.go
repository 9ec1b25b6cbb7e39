package trace

import "fmt"

var kindNames = [...]string{"invalid", "alloc", "free", "function", "launch", "copy", "fault", "migration", "mark",
	"progress", "CPU fault", "thrashing", "remote mapping", "lost"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

var modeNames = [...]string{"unknown", "read", "write", "read+write"}

func (m AccessMode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// Reads reports whether the operation may read the allocation. Unknown access does.
func (m AccessMode) Reads() bool { return m != AccessWrite }

// Writes reports whether the operation may write the allocation. Unknown access does.
func (m AccessMode) Writes() bool { return m != AccessRead }

var copyNames = [...]string{"copy", "host to device", "device to host", "device to device", "fill"}

func (c CopyKind) String() string {
	if int(c) < len(copyNames) {
		return copyNames[c]
	}
	return fmt.Sprintf("copy(%d)", uint8(c))
}
