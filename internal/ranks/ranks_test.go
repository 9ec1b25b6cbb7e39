package ranks

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFromEnviron(t *testing.T) {
	for _, c := range []struct {
		environ string // separated by spaces
		local   int
		label   string // on device 3
	}{
		{"", 1, ""},
		{"RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 LOCAL_RANK=1", 2, "rank1"},
		{"RANK=0 WORLD_SIZE=2", 2, "rank0"},
		{"RANK=9 WORLD_SIZE=16 LOCAL_WORLD_SIZE=8", 8, "rank9"},
		{"RANK=3 WORLD_SIZE=4 LOCAL_WORLD_SIZE=1", 1, "rank3"},
		{"RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1", 1, ""},
		{"RANK=0 WORLD_SIZE=1 PENSTOCK_WORKER=1", 1, ""},
		{"WORLD_SIZE=2", 2, "gpu3"},
		{"WORLD_SIZE=2 PENSTOCK_WORKER=1", 2, "gpu3"},
		{"PENSTOCK_WORKER=1", 1, "gpu3"},
		{"RANK=1", 1, ""},
		{"LOCAL_WORLD_SIZE=4", 4, ""},
		{"RANK=1 WORLD_SIZE=2 PENSTOCK_WORKER=1", 2, "rank1"},
		{"RANK=1 RANK=0 WORLD_SIZE=2", 2, "rank1"},
		{"RANK=one WORLD_SIZE=two LOCAL_WORLD_SIZE=three", 1, ""},
		{"RANK=-1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=0", 2, "gpu3"},
		{"RANK=2 WORLD_SIZE=2", 2, "gpu3"},
		{"RANK=1 WORLD_SIZE=-2 LOCAL_WORLD_SIZE=-2", 1, ""},
		{"RANK= WORLD_SIZE= LOCAL_WORLD_SIZE=", 1, ""},
		{"RANK=1 WORLD_SIZE=99999999999999999999", 1, ""},
	} {
		p := FromEnviron(strings.Fields(c.environ))
		if p.Local != c.local || p.Label(3) != c.label {
			t.Errorf("%q: %+v, label %q; want %d on this host, label %q", c.environ, p, p.Label(3), c.local, c.label)
		}
	}
}

func TestPath(t *testing.T) {
	for _, c := range []struct{ path, label, want string }{
		{"r.json", "rank1", "r.rank1.json"},
		{"r.json", "", "r.json"},
		{"", "rank1", ""},
		{"/a.b/run", "rank12", "/a.b/run.rank12"},
		{"/a.b/run.x.pstrace", "gpu0", "/a.b/run.x.gpu0.pstrace"},
		{"d/.hidden", "rank1", "d/.hidden.rank1"},
		{"run.", "rank1", "run.rank1."},
	} {
		if got := Path(c.path, c.label); got != c.want {
			t.Errorf("%q of %s: %q, want %q", c.path, c.label, got, c.want)
		}
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.json")
	if got, err := Files(path); err != nil || got != nil {
		t.Errorf("%q, %v in an empty folder", got, err)
	}
	for _, name := range []string{"r.json", "r.rank0.json", "r.rank12.json", "r.gpu1.json", // those
		"r.rank.json", "r.ranks1.json", "r.rank1.pstrace", "r.rank1.json.bak", "xr.rank1.json", "r.rank1x.json", "rank1.json", "r.best.json"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{path, Path(path, "gpu1"), Path(path, "rank0"), Path(path, "rank12")}
	if got, err := Files(path); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if _, err := Files(filepath.Join(dir, "none", "r.json")); err == nil {
		t.Error("no error of a folder that is not there")
	}
}
