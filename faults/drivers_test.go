package faults

import (
	"encoding/binary"
	"testing"
)

// The one block that Penstock sends must be right for every row of the table,
// and the status must be found in every row's answer.
func TestInitBlockFitsEveryLayout(t *testing.T) {
	for _, l := range Layouts {
		block := initBlock(make([]byte, 64), 64, make([]byte, 64), 21)
		if len(block) < l.Bytes {
			t.Errorf("%s: the block has %d bytes, want %d", l.From, len(block), l.Bytes)
		}
		if l.VersionAt != 0 && binary.LittleEndian.Uint32(block[l.VersionAt:]) != 1 {
			t.Errorf("%s: no version 1 requested at %d", l.From, l.VersionAt)
		}
		for _, status := range []uint32{0, 0x16, 0x1b, 0x1f, 0x51} {
			answer := initBlock(make([]byte, 64), 64, make([]byte, 64), 21)
			binary.LittleEndian.PutUint32(answer[l.StatusAt:], status)
			if got := initStatus(answer); got != status {
				t.Errorf("%s: status %#x is read as %#x", l.From, status, got)
			}
		}
	}
}

func TestLayoutOf(t *testing.T) {
	for version, want := range map[string]struct {
		from  string
		known bool
	}{
		"535.54.03": {"535", true}, "535.288.01": {"535", true}, "545.29.06": {"535", true}, "550.40.07": {"535", true},
		"550.40.53": {"550.40.53", true}, "550.54.14": {"550.40.53", true}, "550.90.07": {"550.40.53", true}, "555.58.02": {"550.40.53", true},
		"560.35.03": {"560", true}, "565.77": {"565", true}, "570.86.16": {"565", true}, "575.64.05": {"565", true},
		"580.65.06": {"565", true}, "580.159.03": {"565", true}, "590.48.01": {"565", true}, "595.45.04": {"565", true},
		"600.10": {"565", false}, "530.30.02": {"", false}, "": {"", false},
	} {
		l, known := LayoutOf(version)
		if l.From != want.from || known != want.known {
			t.Errorf("%q: %s %v, want %s %v", version, l.From, known, want.from, want.known)
		}
	}
}
