package plan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/trace"
)

// samplePlan is of a small job with a start-up, wrapping calls and residents.
func samplePlan(t testing.TB) *Plan {
	t.Helper()
	tr := jobTrace(6, 3)
	p, err := FromTrace(context.Background(), &trace.Trace{Name: "job", Header: trace.Header{Command: `train.py "[1,2]" \`, GPU: "H200"}, Events: tr}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Period) == 0 || len(p.Prologue) == 0 {
		t.Fatalf("%d calls of start-up, %d of the period: the sample is too simple", len(p.Prologue), len(p.Period))
	}
	return p
}

func written(t testing.TB, p *Plan) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := p.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestFileKeepsThePlan(t *testing.T) {
	p := samplePlan(t)
	path := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(path, written(t, p), 0o644); err != nil {
		t.Fatal(err)
	}
	q, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(p, q) {
		t.Errorf("read %+v, want %+v", q, p)
	}
}

func TestReadRefuses(t *testing.T) {
	good := written(t, samplePlan(t))
	overlapping := samplePlan(t)
	for i := range overlapping.Period {
		overlapping.Period[i].Offset = 0
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":       {nil, "no plan file"},
		"other JSON":  {[]byte(`{"format":"else"}`), "no plan file"},
		"truncated":   {good[:len(good)/2], "no plan file"},
		"changed":     {bytes.Replace(good, []byte(`"iterations":`), []byte(`"iterations":1`), 1), "checksum"},
		"newer":       {bytes.Replace(good, []byte(`"version": 1`), []byte(`"version": 2`), 1), "version 2"},
		"overlapping": {written(t, overlapping), "overlap"},
	} {
		_, err := Read(bytes.NewReader(c.data))
		var bad *FileError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want a FileError with %q", name, err, c.want)
		}
	}
	if _, err := ReadFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestMatches(t *testing.T) {
	p := &Plan{Job: Job{Command: "train.py --batch 4", GPU: "H200"}}
	for _, same := range []Job{p.Job, {}, {GPU: "H200"}} {
		if err := p.Matches(same); err != nil {
			t.Errorf("%+v: %v", same, err)
		}
	}
	err := p.Matches(Job{Command: "train.py --batch 8", GPU: "H200"})
	var mismatch *MismatchError
	if !errors.As(err, &mismatch) || mismatch.What != "command" || !strings.Contains(err.Error(), "--batch 8") {
		t.Errorf("%v", err)
	}
}

func FuzzRead(f *testing.F) {
	good := written(f, samplePlan(f))
	f.Add(good)
	f.Add(good[:len(good)-20])
	f.Add([]byte(`{"format":"penstock-plan","version":1,"checksum":"","plan":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		if err := p.Check(); err != nil {
			t.Fatalf("accepted, but %v", err)
		}
		if _, err := Read(bytes.NewReader(written(t, p))); err != nil {
			t.Fatalf("written and not read: %v", err)
		}
	})
}

// The checksum keeps the fuzzer out of the parser; this lets it in.
func FuzzBody(f *testing.F) {
	good := written(f, samplePlan(f))
	at := bytes.Index(good, []byte(`"plan": `)) + len(`"plan": `)
	f.Add(string(good[at : len(good)-2]))
	f.Fuzz(func(t *testing.T, text string) {
		var compact bytes.Buffer
		if json.Compact(&compact, []byte(text)) != nil {
			return
		}
		data := `{"format":"penstock-plan","version":1,"checksum":"` + checksum(compact.Bytes()) + `","plan":` + text + `}`
		if p, err := Read(strings.NewReader(data)); err == nil {
			if err := p.Check(); err != nil {
				t.Fatalf("accepted, but %v", err)
			}
		}
	})
}
