package prefetch

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/evict"
)

// script is one case of testdata/plans.txt, which says how they are written.
type script struct {
	name           string
	planner        Planner[string]
	start, free    int64
	rest, piece    int64
	limits         Limits
	taken          map[string]bool
	leaves, wanted []string
}

func (s *script) read(t *testing.T, line string) {
	words := strings.Fields(line)
	number := func(i int) int64 {
		if words[i] == "never" {
			return math.MaxInt64
		}
		n, err := strconv.ParseInt(words[i], 10, 64)
		if err != nil {
			t.Fatalf("%s: %q: %v", s.name, line, err)
		}
		return n
	}
	switch words[0] {
	case "start":
		s.start = number(1)
	case "free":
		s.free = number(1)
	case "rest":
		s.rest = number(1)
	case "piece":
		s.piece = number(1)
	case "exact":
		s.limits.Exact = true
	case "need":
		s.planner.Need(words[1], number(2), number(3))
	case "step":
		x := Step{Position: number(1)}
		for i := range words[2:] {
			if n := number(2 + i); n > 0 {
				x.FreshBytes = n
			} else {
				x.FreedBytes = -n
			}
		}
		s.planner.Step(x)
	case "here":
		s.planner.MayLeave(words[1], evict.Candidate{NextUse: number(2), Bytes: number(3)})
	case "later":
		s.planner.MayLeaveLater(words[1], number(2), number(3), evict.Candidate{NextUse: number(3), Bytes: number(4)})
	default:
		t.Fatalf("%s: %q is not understood", s.name, line)
	}
}

// choose is an engine's: what is used before the room is wanted stays, and what left later is no victim now.
func (s *script) choose(v *evict.Victim[Leaver[string]], position int64) (Choice, int64) {
	name := v.Of.Of
	switch {
	case s.taken[name], v.Of.From > 0 && v.Of.Until <= position:
		return Pass, 0
	case v.Of.From > 0:
		s.taken[name] = true
		s.leaves = append(s.leaves, fmt.Sprintf("leave %s later for %d", name, position))
		return Take, v.Bytes
	case v.NextUse <= position:
		return Stop, 0
	}
	if piece := min(s.piece, v.Bytes); piece > 0 {
		s.leaves = append(s.leaves, fmt.Sprintf("leave %s %d for %d", name, piece, position))
		return Take, piece
	}
	s.leaves = append(s.leaves, fmt.Sprintf("leave %s for %d", name, position))
	return Take, v.Bytes
}

func (s *script) answer() []string {
	fetch, plan := s.planner.Plan(nil, s.start, s.free, s.rest, s.limits, s.choose)
	answers := s.leaves
	if plan.BlockedAt >= 0 {
		answers = append(answers, fmt.Sprintf("blocked at %d", plan.BlockedAt))
	}
	if len(fetch) > 0 {
		answers = append(answers, "fetch "+strings.Join(fetch, " "))
	}
	return answers
}

func TestPlans(t *testing.T) {
	text, err := os.ReadFile("testdata/plans.txt")
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split(strings.TrimSpace(string(text)), "\n\n")[1:] // after how they are written
	for _, c := range cases {
		if strings.HasPrefix(c, "#") {
			continue
		}
		lines := strings.Split(c, "\n")
		s := &script{name: lines[0], taken: map[string]bool{}}
		s.planner.Reset(evict.NextUse)
		answers := false
		for _, line := range lines[1:] {
			switch {
			case line == "----":
				answers = true
			case answers:
				s.wanted = append(s.wanted, line)
			default:
				s.read(t, line)
			}
		}
		if got, want := strings.Join(s.answer(), "\n"), strings.Join(s.wanted, "\n"); !answers || got != want {
			t.Errorf("%s: the plan is\n%s\nwant\n%s", s.name, got, want)
		}
	}
	if len(cases) < 10 {
		t.Errorf("only %d plans were read", len(cases))
	}
}

// TestPlannerForgets: a planner that is used again knows nothing of the plan before, entered or not.
func TestPlannerForgets(t *testing.T) {
	s := &script{taken: map[string]bool{}}
	for range 3 {
		s.leaves = nil
		s.planner.Reset(evict.NextUse)
		clear(s.taken)
		s.start, s.free, s.rest = 10, 0, 4
		for _, line := range []string{"need a 30 4", "here x 40 4", "later y 15 500 4", "later z 60 700 4"} {
			s.read(t, line)
		}
		if got := strings.Join(s.answer(), "; "); got != "leave y later for 30" {
			t.Errorf("the plan is %q", got)
		}
	}
}
