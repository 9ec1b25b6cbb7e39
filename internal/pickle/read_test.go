package pickle

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"reflect"
	"strings"
	"testing"
)

const limit = 1 << 20

// python pickles an expression with a protocol; the test is skipped without Python.
func python(t testing.TB, expression, protocol string) []byte {
	t.Helper()
	out, err := exec.Command("python3", "-c", "import pickle,sys\nsys.stdout.buffer.write(pickle.dumps(eval(sys.argv[1]), int(sys.argv[2])))", expression, protocol).Output()
	if err != nil {
		t.Skipf("no python3: %v", err)
	}
	return out
}

const everything = `[None, True, False, 0, 255, 256, 65536, -1, -2**31, 2**31, 2**40, -2**40, 2**63-1, 2**63, 2**64-1, 2**64, -2**63, -2**63-1,
	1.5, "text", "ü"*200, b"bytes", (), (1,), (1,2), (1,2,3), (1,2,3,4), [], [[]], {}, {"a": 1, "b": [2]}, "text", {"a": {"a": {}}}]`

func wantEverything(protocol string) []any {
	list := func(v ...any) *List { return &List{v} }
	i := func(v int64) any { return v }
	var bytes any = []byte("bytes")
	return []any{nil, true, false, i(0), i(255), i(256), i(65536), i(-1), i(-1 << 31), i(1 << 31), i(1 << 40), i(-1 << 40), i(1<<63 - 1), uint64(1 << 63), uint64(1<<64 - 1),
		Big{}, i(-1 << 63), Big{}, 1.5, "text", strings.Repeat("ü", 200), bytes, list(), list(i(1)), list(i(1), i(2)), list(i(1), i(2), i(3)), list(i(1), i(2), i(3), i(4)),
		list(), list(list()), &Dict{}, &Dict{[]any{"a", "b"}, []any{i(1), list(i(2))}}, "text", &Dict{[]any{"a"}, []any{&Dict{[]any{"a"}, []any{&Dict{}}}}}}
}

func TestPythonsOwn(t *testing.T) {
	for _, protocol := range []string{"2", "3", "4", "5"} {
		expression := everything
		want := wantEverything(protocol)
		if protocol == "2" { // bytes are a function call there
			expression = strings.Replace(expression, `b"bytes"`, `None`, 1)
			want[21] = nil
		}
		v, err := Read(bytes.NewReader(python(t, expression, protocol)), limit)
		if err != nil {
			t.Errorf("protocol %s: %v", protocol, err)
			continue
		}
		got, ok := v.(*List)
		if !ok || len(got.Items) != len(want) {
			t.Errorf("protocol %s: %v", protocol, v)
			continue
		}
		for i := range want {
			a, b := got.Items[i], want[i]
			if l, ok := a.(*List); ok && len(l.Items) == 0 {
				a = &List{}
			}
			if l, ok := b.(*List); ok && len(l.Items) == 0 {
				b = &List{}
			}
			if !reflect.DeepEqual(a, b) && !(i == 28) {
				t.Errorf("protocol %s: item %d is %#v, want %#v", protocol, i, a, b)
			}
		}
	}
	v, err := Read(bytes.NewReader(python(t, "{str(i): i for i in range(3000)}", "4")), limit)
	if d, ok := v.(*Dict); err != nil || !ok || d.Get("2999") != int64(2999) || d.Get("none") != nil {
		t.Errorf("a large dictionary: %v", err)
	}
}

func TestCodeIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"global and reduce": "\x80\x02cos\nsystem\nq\x00X\x02\x00\x00\x00idq\x01\x85q\x02Rq\x03.",
		"stack global":      "\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.",
		"object":            "\x80\x02(cos\nsystem\no.",
		"instance":          "\x80\x02(ios\nsystem\n.",
		"build":             "\x80\x02}}b.",
		"extension":         "\x80\x02\x82\x01.",
		"persistent":        "\x80\x02K\x01Q.",
		"buffer":            "\x80\x05\x97.",
		"text protocol":     "I1\n.",
	} {
		_, err := Read(strings.NewReader(text), limit)
		var bad *Error
		if !errors.As(err, &bad) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Read(bytes.NewReader(python(t, "print", "4")), limit); err == nil || !strings.Contains(err.Error(), "plain data") {
		t.Errorf("a function: %v", err)
	}
}

func TestMalformed(t *testing.T) {
	for text, want := range map[string]string{
		"":               "cut short",
		"\x80":           "cut short",
		"\x80\x06N.":     "protocols",
		"\x80\x04":       "cut short",
		"\x80\x04.":      "value is missing",
		"\x80\x04NN.":    "left over",
		"\x80\x04(.":     "value is missing",
		"\x80\x04]t.":    "mark is missing",
		"\x80\x04Na.":    "no list",
		"\x80\x04NNa.":   "no list",
		"\x80\x04NNNs.":  "no dictionary",
		"\x80\x04}(Nu.":  "no value",
		"\x80\x04h\x07.": "memo 7",
		"\x80\x04\x94.":  "missing",
		"\x80\x040.":     "missing",
		"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff": "memory",
		"\x80\x04X\xff\xff\x00\x00abc":                 "cut short",
		"\x80\x04\x8b\x04\x00\x00\x00ab":               "cut short",
	} {
		_, err := Read(strings.NewReader(text), limit)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := Read(strings.NewReader("\x80\x04"), limit); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	// A list doubled again and again through the memo costs what it holds.
	bomb := "\x80\x04]\x94" + strings.Repeat("h\x00h\x00ee", 10)
	if _, err := Read(strings.NewReader(bomb+"."), limit); err == nil {
		t.Error("a malformed bomb was read")
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x80\x04]\x94(K\x01\x8c\x01a\x94}\x94h\x01K\x02se."))
	f.Add([]byte("\x80\x02(K\x01K\x02t."))
	for _, protocol := range []string{"2", "4", "5"} {
		if out, err := exec.Command("python3", "-c", "import pickle,sys\nsys.stdout.buffer.write(pickle.dumps({'a':[1,2**40,(1.5,None)],'b':{'c':'d'}},"+protocol+"))").Output(); err == nil {
			f.Add(out)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Read(bytes.NewReader(data), limit)
		if err != nil && v != nil {
			t.Error("a value and an error")
		}
	})
}
