package timeline

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/trace/phase"
)

func small() *Timeline {
	l := &Timeline{lost: 2}
	l.Add(Span{Track: In, Name: "fetch", From: 10*us + 1, To: 30 * us, Bytes: 1 << 20, Detail: `of "x" <y>`})
	l.Add(Span{Track: In, Name: "map", From: 20 * us, To: 25 * us})
	l.Add(Span{Track: Waits, Name: "for room", From: longest - time.Hour - 1, To: longest - time.Hour, Detail: "operation 3"})
	l.marks.set = []Mark{{Begins(phase.Optimizer), 12 * us}, {Iteration, 5 * us}}
	return l
}

func text(t *testing.T, l *Timeline) string {
	t.Helper()
	var b bytes.Buffer
	if err := l.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestReadWhatWasWritten(t *testing.T) {
	l := small()
	r, err := Read(strings.NewReader(text(t, l)))
	if err != nil {
		t.Fatal(err)
	}
	want := &Recorded{Spans: l.spans, Marks: []Mark{{Iteration, 5 * us}, {Begins(phase.Optimizer), 12 * us}}, Lost: 2}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("%+v, want %+v", r, want)
	}
	if r, err = Read(strings.NewReader(text(t, &Timeline{}))); err != nil || len(r.Spans) > 0 {
		t.Errorf("an empty one: %+v, %v", r, err)
	}
}

func TestReadRefuses(t *testing.T) {
	const head = `[{"name":"process_name","ph":"M","ts":0,"pid":0,"tid":0,"args":{"name":"penstock"}}`
	const row = head + `,{"name":"thread_name","ph":"M","ts":0,"pid":0,"tid":1,"args":{"name":"moves in"}}`
	whole := text(t, small())
	for name, c := range map[string]struct{ text, says string }{
		"nothing":            {"", "no list"},
		"an object":          {`{"traceEvents": []}`, "no list"},
		"binary":             {"\x80\x04\x95", "no list"},
		"no event":           {"[]", "no event"},
		"cut off":            {whole[:len(whole)-30], "cut off in event"},
		"cut off between":    {head, "cut off after event 0"},
		"more behind":        {whole + "[]", "behind the list"},
		"another program's":  {`[{"name":"process_name","ph":"M","args":{"name":"python"}}]`, "not of penstock"},
		"torch.profiler's":   {`[{"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":1,"ts":1,"dur":1}]`, "unknown field"},
		"no head":            {`[{"name":"x","ph":"X","ts":0,"dur":1,"tid":1}]`, "not named at the head"},
		"two heads":          {head + `,{"name":"process_name","ph":"M","args":{"name":"penstock"}}]`, "event 1: the process"},
		"negative lost":      {`[{"name":"process_name","ph":"M","args":{"name":"penstock","lost_spans":-1}}]`, "not of penstock"},
		"an unknown track":   {head + `,{"name":"thread_name","ph":"M","tid":1,"args":{"name":"GPU"}}]`, "cannot be named"},
		"a row named twice":  {row + `,{"name":"thread_name","ph":"M","tid":1,"args":{"name":"moves out"}}]`, "cannot be named"},
		"a row not named":    {row + `,{"name":"fetch","ph":"X","ts":0,"dur":1,"tid":2}]`, "was not named"},
		"no time":            {row + `,{"name":"fetch","ph":"X","dur":1,"tid":1}]`, "time is missing"},
		"a time before":      {row + `,{"name":"fetch","ph":"X","ts":-1,"dur":1,"tid":1}]`, "not of a job"},
		"a time without end": {row + `,{"name":"fetch","ph":"X","ts":1e300,"dur":1,"tid":1}]`, "not of a job"},
		"no length":          {row + `,{"name":"fetch","ph":"X","ts":1,"tid":1}]`, "a span of"},
		"no name":            {row + `,{"name":"","ph":"X","ts":1,"dur":1,"tid":1}]`, "a span of"},
		"negative bytes":     {row + `,{"name":"fetch","ph":"X","ts":1,"dur":1,"tid":1,"args":{"bytes":-1}}]`, "a span of"},
		"bytes of a text":    {row + `,{"name":"fetch","ph":"X","ts":1,"dur":1,"tid":1,"args":{"bytes":"1"}}]`, "event 2"},
		"another kind":       {row + `,{"name":"fetch","ph":"B","ts":1,"tid":1}]`, "is not expected"},
		"another mark":       {row + `,{"name":"fetch","ph":"i","ts":1,"tid":1}]`, "is not expected"},
		"a long text":        {row + `,{"name":"` + strings.Repeat("x", mostText+1) + `","ph":"X","ts":1,"dur":1,"tid":1}]`, "a text of more"},
	} {
		if _, err := Read(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// What is read is written again as it was.
func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	_ = small().Write(&b)
	f.Add(b.Bytes())
	f.Add([]byte(`[{"name":"process_name","ph":"M","args":{"name":"penstock"}}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		l := &Timeline{spans: r.Spans, lost: r.Lost, marks: marks{set: r.Marks}}
		again, err := Read(strings.NewReader(text(t, l)))
		if err != nil || len(again.Spans) != len(r.Spans) || len(again.Marks) != len(r.Marks) || again.Lost != r.Lost {
			t.Fatalf("%+v comes back as %+v, %v", r, again, err)
		}
		for i := range r.Spans {
			if r.Spans[i] != again.Spans[i] {
				t.Fatalf("%+v comes back as %+v", r.Spans[i], again.Spans[i])
			}
		}
	})
}
