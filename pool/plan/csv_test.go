package plan

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestReadCSV(t *testing.T) {
	in, err := ReadCSV(strings.NewReader("size,id, upper ,lower,alignment,offset,hint\r\n10,b,7,3,8,,1\n\n4,a,9,-2,,16,2\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{{Span: Span{3, 7}, Bytes: 10, AlignBytes: 8}, {Span: Span{-2, 9}, Bytes: 4, Pinned: true, Offset: 16}}
	if len(in.Requests) != 2 || in.Requests[0] != want[0] || in.Requests[1] != want[1] || in.IDs[0] != "b" {
		t.Errorf("%+v", in)
	}
	var out bytes.Buffer
	if err := in.WriteCSV(&out, []int64{0, 16}); err != nil || out.String() != "id,offset\nb,0\na,16\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestReadCSVRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                                  "no request",
		"id,lower,upper,size\n":                             "no request",
		"1,2,3,4\n":                                         "heading",
		"id,lower,upper\n1,2,3\n":                           `"size"`,
		"id,id,lower,upper,size\n":                          "two columns",
		"id,lower,upper,size\n1,2,3\n":                      "line 2: 3 columns",
		"id,lower,upper,size\n1,2,x,4\n":                    `upper "x"`,
		"id,lower,upper,size\n1,3,3,4\n":                    "never alive",
		"id,lower,upper,size\n1,2,3,-4\n":                   "size of -4",
		"id,lower,upper,size\n1,2,3,4\n1,2,3,4":             "line 3: id",
		"id,lower,upper,size\n1,2,3,9223372036854775807\n":  "impossible size",
		"id,lower,upper,size\n1,2,3,99223372036854775807\n": "no whole number",
		"id,lower,upper,size\n" + strings.Repeat("9", maxLineBytes+1): "line 2",
	} {
		_, err := ReadCSV(strings.NewReader(text))
		var bad *CSVError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

func FuzzReadCSV(f *testing.F) {
	f.Add("id,lower,upper,size\n1,0,3,4\n2,2,5,8\n")
	f.Add("id,lower,upper,size,alignment,offset\n1,0,3,4,8,16\n2,2,5,8,,-1\n")
	f.Fuzz(func(t *testing.T, text string) {
		in, err := ReadCSV(strings.NewReader(text))
		if err != nil || len(in.Requests) > 200 {
			return
		}
		p, err := Place(context.Background(), in.Requests, Options{TimeLimit: 10 * time.Millisecond})
		if err != nil {
			return
		}
		if err := Check(in.Requests, p.Offsets, p.Bytes); err != nil {
			t.Fatal(err)
		}
	})
}
