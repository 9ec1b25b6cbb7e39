package report

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/penstock-gpu/penstock/replay"
)

func render(t testing.TB, title string, results []replay.Result) (string, *html.Node) {
	t.Helper()
	var b strings.Builder
	if err := WriteHTML(&b, title, results); err != nil {
		t.Fatal(err)
	}
	node, err := html.Parse(strings.NewReader(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return b.String(), node
}

func walk(n *html.Node, visit func(*html.Node)) {
	visit(n)
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		walk(c, visit)
	}
}

func find(n *html.Node, tag string) []*html.Node {
	var out []*html.Node
	walk(n, func(n *html.Node) {
		if n.Type == html.ElementNode && n.Data == tag {
			out = append(out, n)
		}
	})
	return out
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func text(n *html.Node) string {
	var b strings.Builder
	walk(n, func(n *html.Node) {
		if n.Type == html.TextNode {
			b.WriteString(n.Data + " ")
		}
	})
	return strings.Join(strings.Fields(b.String()), " ")
}

func TestPageStructure(t *testing.T) {
	results := append(synthetic("llama1b", replay.EngineManaged, 9*gib, 1.25, 1.5, 2, 3),
		synthetic("moe", replay.EngineManaged, 4*gib, 2)...)
	_, page := render(t, "Demo", results)

	if got := text(find(page, "title")[0]); got != "Demo (simulated)" {
		t.Errorf("title %q", got)
	}
	// A summary, and for each case a matrix; for each of five points a table, and a text equivalent of each plot.
	points, plots := 5, 5*(3+5)
	if got, want := len(find(page, "table")), 1+2+points+plots; got != want {
		t.Errorf("%d tables, want %d", got, want)
	}
	for _, c := range find(page, "caption") {
		if !strings.Contains(text(c), "imulated") {
			t.Errorf("table %q is not labelled simulated", text(c))
		}
	}
	for _, h := range append(find(page, "h1"), find(page, "h3")...) {
		if !strings.Contains(text(h), "simulated") {
			t.Errorf("heading %q is not labelled simulated", text(h))
		}
	}
	if got, want := len(find(page, "figure")), points+plots; got != want {
		t.Errorf("%d figures, want %d", got, want)
	}

	ids := map[string]*html.Node{}
	walk(page, func(n *html.Node) {
		if id := attribute(n, "id"); id != "" {
			if ids[id] != nil {
				t.Errorf("id %q appears twice", id)
			}
			ids[id] = n
		}
	})
	for _, a := range find(page, "a") {
		if target := strings.TrimPrefix(attribute(a, "href"), "#"); ids[target] == nil {
			t.Errorf("link to %q leads nowhere", attribute(a, "href"))
		}
	}
	for _, svg := range find(page, "svg") {
		if attribute(svg, "aria-hidden") == "true" {
			continue
		}
		title, description := ids[attribute(svg, "aria-labelledby")], ids[attribute(svg, "aria-describedby")]
		if attribute(svg, "role") != "img" || title == nil || description == nil || len(text(description)) < 20 {
			t.Errorf("a plot lacks a name or a description: %v", svg.Attr)
		}
	}
}

func TestPageNumbers(t *testing.T) {
	results := synthetic("llama1b", replay.EngineManaged, 9*gib, 2)
	_, page := render(t, "Demo", results)
	cases, _ := group(results)
	c := cases[0]
	rows := map[string]string{} // of the detail table
	for _, tr := range find(find(page, "table")[1], "tr") {
		if th := find(tr, "th"); len(th) == 1 {
			rows[text(th[0])] = text(tr)
		}
	}
	for _, r := range c.points[0].rows {
		bound := "itself –"
		if !r.isBound() {
			share, _ := r.ofBound()
			bound = c.time.in(r.bound.IterationSeconds) + " " + formatShare(share)
		}
		times, _ := r.overNaive()
		want := strings.Join([]string{
			r.Policy, c.time.in(r.IterationSeconds), bound, formatTimes(times), c.time.in(r.StallSeconds),
			c.bytes.in(r.H2DBytes), c.bytes.in(r.D2HBytes), formatCount(r.Faults),
		}, " ")
		if !strings.HasPrefix(rows[r.Policy], want) {
			t.Errorf("row %q, want it to start with %q", rows[r.Policy], want)
		}
	}
}

// TestPlotsStayInside reads every coordinate of every path back.
func TestPlotsStayInside(t *testing.T) {
	results := synthetic("llama1b", replay.EngineManaged, 9*gib, 1.25, 3)
	results[0].Timeline[100].ResidentBytes = 30 * gib // over the budget and the peak: it must show, inside the plot
	_, page := render(t, "Demo", results)
	number := regexp.MustCompile(`[ML](\S+) ([0-9.-]+)`)
	seen := 0
	for _, svg := range find(page, "svg") {
		if attribute(svg, "role") != "img" {
			continue
		}
		box := strings.Fields(attribute(svg, "viewbox") + attribute(svg, "viewBox"))
		width, _ := strconv.ParseFloat(box[2], 64)
		height, _ := strconv.ParseFloat(box[3], 64)
		for _, p := range find(svg, "path") {
			for _, m := range number.FindAllStringSubmatch(attribute(p, "d"), -1) {
				x, errX := strconv.ParseFloat(m[1], 64)
				y, errY := strconv.ParseFloat(m[2], 64)
				if errX != nil || errY != nil || x < 0 || x > width || y < 0 || y > height {
					t.Fatalf("point %q outside of %vx%v", m[0], width, height)
				}
				seen++
			}
		}
	}
	if seen < 1000 {
		t.Errorf("only %d points drawn", seen)
	}
}

func TestPageNeedsNothingElse(t *testing.T) {
	source, page := render(t, "Demo", synthetic("llama1b", replay.EngineManaged, 9*gib, 2))
	for _, tag := range []string{"script", "link", "img", "iframe", "object", "embed", "base", "form"} {
		if n := len(find(page, tag)); n > 0 {
			t.Errorf("%d <%s> elements", n, tag)
		}
	}
	for _, outside := range []string{"http://", "https://", "//", "url(", "@import"} {
		// The doctype and namespaces of inline SVG need no address either.
		if strings.Contains(source, outside) {
			t.Errorf("the page contains %q", outside)
		}
	}
	if !strings.Contains(source, "default-src 'none'") {
		t.Error("no content security policy")
	}
	if len(source) > 1<<20 {
		t.Errorf("one ratio takes %d bytes", len(source))
	}
}

var hostileNames = []string{
	`<script>alert(1)</script>`,
	`"><img src=x onerror=alert(1)>`,
	`' onmouseover='alert(1)`,
	`</svg></style></table><iframe src=//x>`,
	`javascript:alert(1)`,
	"a\x00b\x1b[2J\u202e",
	`{{.}}`,
	"\xff\xfe",
	"",
}

func checkHostile(t testing.TB, name string) {
	t.Helper()
	results := synthetic(name, name, 2*gib, 2)
	for i := range results {
		results[i].GPU = name
		results[i].Timeline = results[i].Timeline[:20] // names do not get longer with it
		if i == 2 {
			results[i].Policy = name
		}
	}
	_, page := render(t, name, results)
	walk(page, func(n *html.Node) {
		if n.Type == html.CommentNode {
			t.Errorf("name %q: made a comment", name)
		}
		if n.Type != html.ElementNode {
			return
		}
		switch n.Data {
		case "script", "img", "iframe", "object", "embed":
			t.Errorf("name %q: made a <%s>", name, n.Data)
		}
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || strings.Contains(strings.ToLower(a.Val), "javascript:") && a.Key == "href" {
				t.Errorf("name %q: made the attribute %s=%q", name, a.Key, a.Val)
			}
		}
	})
	if got, want := len(find(page, "figure")), 1+3+5; got != want {
		t.Errorf("name %q: %d figures, want %d", name, got, want)
	}
	var table strings.Builder
	if err := WriteTable(&table, results); err != nil {
		t.Fatal(err)
	}
	for _, r := range table.String() {
		if r != '\n' && r < ' ' || r == 0x7f || r == '\u202e' {
			t.Errorf("name %q: %U reaches the terminal", name, r)
		}
	}
}

func TestHostileNames(t *testing.T) {
	for _, name := range hostileNames {
		checkHostile(t, name)
	}
	// The name is shown as it is, not dropped.
	_, page := render(t, "x", synthetic(hostileNames[0], replay.EngineManaged, gib, 2))
	if !strings.Contains(text(page), hostileNames[0]) {
		t.Error("the hostile name is not shown as text")
	}
}

func FuzzNames(f *testing.F) {
	for _, name := range hostileNames {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if name == replay.PolicyNaive || name == replay.PolicyLRU || name == replay.PolicyDeepUM ||
			name == replay.PolicyPenstock || name == replay.PolicyOracle {
			t.Skip("doubles a policy, which is refused")
		}
		checkHostile(t, name)
	})
}

func TestWithoutTimeline(t *testing.T) {
	results := synthetic("llama1b", replay.EngineManaged, 9*gib, 2)
	for i := range results {
		results[i].Timeline = nil
	}
	_, page := render(t, "Demo", results)
	if got := len(find(page, "figure")); got != 1 {
		t.Errorf("%d figures, want the bars only", got)
	}
	if !strings.Contains(text(page), "Not plotted over time") || !strings.Contains(text(page), "2x naive, 2x lru") {
		t.Error("the page does not say which plots are missing")
	}
}

func TestSameInputSamePage(t *testing.T) {
	results := append(synthetic("a", replay.EngineManaged, 9*gib, 2), synthetic("a", replay.EngineExplicit, 9*gib, 2)...)
	first, _ := render(t, "Demo", results)
	for range 3 {
		if again, _ := render(t, "Demo", results); again != first {
			t.Fatal("two pages of the same results differ")
		}
	}
}

type brokenWriter struct{}

var errBroken = errors.New("disk full")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestWriterErrors(t *testing.T) {
	results := synthetic("a", replay.EngineManaged, gib, 2)
	if err := WriteHTML(brokenWriter{}, "t", results); !errors.Is(err, errBroken) {
		t.Errorf("WriteHTML: got %v", err)
	}
	if err := WriteTable(brokenWriter{}, results); !errors.Is(err, errBroken) {
		t.Errorf("WriteTable: got %v", err)
	}
}
