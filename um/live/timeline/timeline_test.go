package timeline

import (
	"bytes"
	"encoding/json"
	"sync"
	"testing"
	"time"
)

const us = time.Microsecond

// events writes a time line and reads the events as any viewer of the format does.
func events(t *testing.T, l *Timeline) (all []map[string]any) {
	t.Helper()
	var b bytes.Buffer
	if err := l.Write(&b); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Bytes(), &all); err != nil {
		t.Fatalf("%v in %s", err, b.String())
	}
	return all
}

func TestNilKeepsNothing(t *testing.T) {
	var l *Timeline
	l.Add(Span{Track: In, Name: "fetch", To: us})
	l.Launched(1, 2, "adam", 1, 1)
	l.Done(1, 2, us)
	var b bytes.Buffer
	if err := l.Write(&b); err != nil || b.Len() > 0 {
		t.Errorf("%v, %s", err, b.String())
	}
}

// Spans of a track that overlap lie in rows of their own, which are used again; the format wants those of a row nested.
func TestOverlappingSpansHaveRowsOfTheirOwn(t *testing.T) {
	l := &Timeline{}
	for _, s := range []Span{
		{Track: In, Name: "c", From: 30 * us, To: 40 * us}, // not in the order in which they began
		{Track: In, Name: "a", From: 0, To: 20 * us, Bytes: 7, Detail: "x"},
		{Track: In, Name: "b", From: 10 * us, To: 35 * us},
		{Track: Out, Name: "d", From: 10 * us, To: 20 * us},
		{Track: Out, Name: "empty", From: 10 * us, To: 10 * us},
	} {
		l.Add(s)
	}
	row, names := map[string]float64{}, map[float64]string{}
	var last float64
	for i, e := range events(t, l) {
		switch {
		case i == 0 && (e["name"] != "process_name" || e["args"].(map[string]any)["lost_spans"] != 0.0):
			t.Errorf("the head is %v", e)
		case e["name"] == "thread_name":
			names[e["tid"].(float64)] = e["args"].(map[string]any)["name"].(string)
		case e["ph"] == "X":
			if e["ts"].(float64) < last {
				t.Errorf("%v is out of order", e)
			}
			last = e["ts"].(float64)
			row[e["name"].(string)] = e["tid"].(float64)
			if e["name"] == "a" && (e["dur"] != 20.0 || e["args"].(map[string]any)["bytes"] != 7.0 || e["args"].(map[string]any)["of"] != "x") {
				t.Errorf("a is %v", e)
			}
		}
	}
	if len(row) != 4 || row["a"] == row["b"] || row["c"] != row["a"] || row["d"] == row["a"] || row["d"] == row["b"] {
		t.Errorf("the rows are %v", row)
	}
	if names[row["a"]] != string(In) || names[row["b"]] != string(In) || names[row["d"]] != string(Out) || len(names) != 3 {
		t.Errorf("the rows are named %v", names)
	}
}

// More at one time than a track has rows still stays on the track.
func TestTracksHaveSoManyRows(t *testing.T) {
	l := &Timeline{}
	for i := range 2 * perTrack {
		l.Add(Span{Track: Waits, Name: "w", From: time.Duration(i) * us, To: time.Second})
	}
	rows := map[float64]bool{}
	for _, e := range events(t, l) {
		if e["ph"] == "X" {
			rows[e["tid"].(float64)] = true
		}
	}
	if len(rows) != perTrack || rows[1+perTrack] {
		t.Errorf("%d rows", len(rows))
	}
}

func TestLostSpansAreCounted(t *testing.T) {
	l := &Timeline{}
	for i := range Most + 3 {
		l.Add(Span{Track: In, Name: "fetch", From: time.Duration(i), To: time.Duration(i + 1)})
	}
	if len(l.spans) != Most || l.lost != 3 {
		t.Errorf("%d kept, %d lost", len(l.spans), l.lost)
	}
	l.spans = l.spans[:1] // the file says it as well
	if lost := events(t, l)[0]["args"].(map[string]any)["lost_spans"]; lost != 3.0 {
		t.Errorf("the file says that %v are lost", lost)
	}
}

func TestThreadsAddAtOnce(t *testing.T) {
	l := &Timeline{}
	var group sync.WaitGroup
	const threads, each = 4, 500
	for n := range threads {
		group.Go(func() {
			for i := range each {
				at := time.Duration(i) * us
				l.Add(Span{Track: order[n], Name: "x", From: at, To: at + us})
				l.Launched(n, uint64(i), "", int64(i), 10)
				l.Done(n, uint64(i), at)
				if i == each/2 {
					_ = l.Write(&bytes.Buffer{})
				}
			}
		})
	}
	group.Wait()
	n := 0
	for _, e := range events(t, l) {
		if e["ph"] == "X" {
			n++
		}
	}
	if n != threads*each {
		t.Errorf("%d spans of %d", n, threads*each)
	}
}
