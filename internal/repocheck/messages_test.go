package repocheck

import (
	"slices"
	"testing"
)

func TestMessagesOfAPage(t *testing.T) {
	page := "| message | cause |\n| --- | --- |\n| `a … b` | x |\n| `whole` | `code` |\nno row: `c`\n"
	got := messagesIn([]byte(page))
	if want := [][]string{{"a", "b"}, {"whole"}}; !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSaid(t *testing.T) {
	source := "l.log.Warn(\"one \\\"quoted\\\"\", x)\nlog.Info(\"not this\")\n\tw = append(w, fmt.Sprintf(\"%d of it\", n))\n\tw = append(w, \"plain\")\nl.Error(\"broken\")\n"
	if got, want := said([]byte(source)), []string{`one \"quoted\"`, "broken", "%d of it", "plain"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestExplains(t *testing.T) {
	for _, c := range []struct {
		pieces  []string
		message string
		want    bool
	}{
		{[]string{"a", "b"}, "a 1 b", true},
		{[]string{"b", "a"}, "a 1 b", false},
		{[]string{"a a"}, "a", false},
		{nil, "a", false},
	} {
		if got := explains(c.pieces, c.message); got != c.want {
			t.Errorf("%q of %q: %t, want %t", c.pieces, c.message, got, c.want)
		}
	}
}

func TestWords(t *testing.T) {
	if got := words([]byte("| a | --- | two words |\n\n- 4.5 %")); got != 4 {
		t.Errorf("got %d words, want 4", got)
	}
}
