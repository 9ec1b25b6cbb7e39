package view

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/trace"
)

const nasty = "<script>alert(1)</script>\x1b[2J|`*_\"' =cmd"

// paged is the report of a job that pages: naming nasty, with something in every view.
func paged(t testing.TB) *analyse.Report {
	t.Helper()
	a := analyse.New(trace.Header{Command: nasty, GPU: "NVIDIA H200", Policy: "naive", BudgetBytes: 3 << 30, Started: time.Unix(1_800_000_000, 0), Driver: "580.1"})
	add := func(e trace.Event) { a.Add(&e) }
	const base = 0x7f0000000000
	add(trace.Event{Kind: trace.KindAlloc, Alloc: 1, Address: base, Bytes: 256 << 20, Name: nasty})
	add(trace.Event{Kind: trace.KindFunction, Function: 1, Name: nasty})
	add(trace.Event{Kind: trace.KindFunction, Function: 2, Name: "adam"})
	at := time.Duration(0)
	for i := range 400 {
		at += time.Millisecond
		p := uint64(base + i*37%128*(2<<20))
		add(trace.Event{Kind: trace.KindLaunch, Time: at, Function: uint32(1 + i/100%2), Duration: -1, Accesses: []trace.Access{{Alloc: 1}}})
		add(trace.Event{Kind: trace.KindFault, Time: at + 1000, Address: p, GPU: 1, Batch: uint32(i)})
		add(trace.Event{Kind: trace.KindMigration, Time: at + 2000, Duration: 40000, Address: p, Bytes: 2 << 20, To: trace.SideDevice, Cause: trace.CauseCoherence, GPU: 1})
		add(trace.Event{Kind: trace.KindProgress, Time: at + 500000, Alloc: uint64(i + 1)})
		add(trace.Event{Kind: trace.KindMigration, Time: at + 600000, Duration: 40000, Address: p, Bytes: 2 << 20, Cause: trace.CauseEviction, GPU: 1})
		if i%50 == 0 {
			add(trace.Event{Kind: trace.KindMigration, Time: at + 700000, Duration: 40000, Address: p, Bytes: 2 << 20, To: trace.SideDevice, Cause: trace.CauseUser, GPU: 1})
		}
	}
	add(trace.Event{Kind: trace.KindLost, Time: at, Bytes: 12, Name: "events"})
	add(trace.Event{Kind: trace.KindMark, Time: at, Name: analyse.Counters{H2DBytes: 1}.Mark()})
	r := a.Report(true)
	r.Trace = nasty
	return r
}

// Every view in every format: rows and columns agree, nothing dangerous comes through.
func TestFormats(t *testing.T) {
	r := paged(t)
	for _, v := range Views {
		table, ok := Make(v.Name, r)
		if !ok || len(table.Rows) == 0 || table.Title == "" {
			t.Errorf("%s: %d rows", v.Name, len(table.Rows))
		}
		for _, row := range table.Rows {
			if len(row) != len(table.Columns) {
				t.Fatalf("%s: %d cells in %d columns", v.Name, len(row), len(table.Columns))
			}
		}
		var text, md, table2, js bytes.Buffer
		if err := table.WriteText(&text, 60); err != nil || strings.ContainsAny(text.String(), "\x1b\x00") {
			t.Errorf("%s: %v\n%q", v.Name, err, text.String())
		}
		if err := table.WriteMarkdown(&md); err != nil || strings.Contains(md.String(), "<script") {
			t.Errorf("%s: %v\n%s", v.Name, err, md.String())
		}
		if err := table.WriteCSV(&table2); err != nil {
			t.Error(err)
		}
		rows, err := csv.NewReader(&table2).ReadAll()
		if err != nil || len(rows) != len(table.Rows)+1 {
			t.Errorf("%s: %d lines of CSV, %v", v.Name, len(rows), err)
		}
		var x struct{ Rows []map[string]any }
		if err := table.WriteJSON(&js); err != nil {
			t.Error(err)
		}
		if err := json.Unmarshal(js.Bytes(), &x); err != nil || len(x.Rows) != len(table.Rows) {
			t.Errorf("%s: %v, %d rows", v.Name, err, len(x.Rows))
		}
	}
	if _, ok := Make("nothing", r); ok {
		t.Error("a view that does not exist")
	}
}

func TestUnknownIsNotZero(t *testing.T) {
	empty := analyse.New(trace.Header{}).Report(true)
	table, _ := Make("summary", empty)
	var b strings.Builder
	if err := table.WriteText(&b, 80); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"launches", "migration amplification", "bytes per fault", "wasted prefetch"} {
		if !regexp.MustCompile(what + ` +n/a`).MatchString(b.String()) {
			t.Errorf("%s is not n/a in\n%s", what, b.String())
		}
	}
}

func TestExplain(t *testing.T) {
	r := paged(t)
	all := Explain(r)
	text := ""
	for _, f := range all {
		text += f.What + " -> " + f.Do + "\n"
	}
	for _, want := range []string{"The GPU faulted 400 times", "never predicted", "penstock run --policy penstock", "12 events", "the driver itself counts 1 bytes", "each byte crossed the bus"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	nothing := Explain(analyse.New(trace.Header{}).Report(true))
	if len(nothing) != 1 || !strings.Contains(nothing[0].What, "never faulted") {
		t.Errorf("%+v", nothing)
	}
	blind := Explain(analyse.New(trace.Header{Lacks: "faults: no node"}).Report(true))
	if !strings.Contains(blind[0].What, "Nothing can be said") || blind[0].Do == "" {
		t.Errorf("%+v", blind)
	}
	// Every cause has its advice.
	for c := range analyse.Causes {
		r := analyse.New(trace.Header{}).Report(true)
		r.Summary.Faults, r.Causes[c].Faults = 10, 10
		e := explainer{r: r}
		if e.cause(); len(e.findings) != 1 || !strings.Contains(e.findings[0].What, c.String()) || (e.findings[0].Do == "") != (c == analyse.AlreadyThere) {
			t.Errorf("%v: %+v", c, e.findings)
		}
	}
}

// The page stands alone: no script, no address of anything else, names escaped.
func TestPage(t *testing.T) {
	var b bytes.Buffer
	if err := WriteHTML(&b, paged(t)); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, bad := range []string{"<script", "http://", "https://", "ZgotmplZ", "\x1b", "src="} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	var walk func(n *html.Node)
	walk = func(n *html.Node) {
		if n.Type == html.ElementNode {
			counts[n.Data]++
		}
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			walk(c)
		}
	}
	walk(root)
	if counts["table"] < 10 || counts["path"] != 4 || counts["rect"] < 50 || counts["script"] != 0 {
		t.Errorf("%v", counts)
	}
	for _, want := range []string{"The GPU faulted 400 times", "H200", "GPU faults by address and time", "naive", "3 GiB"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	var empty bytes.Buffer
	if err := WriteHTML(&empty, analyse.New(trace.Header{}).Report(true)); err != nil || !strings.Contains(empty.String(), "never faulted") {
		t.Errorf("%v", err)
	}
}

// In a real browser, with the network off: what is drawn has colour in it.
func TestPageInBrowser(t *testing.T) {
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			browser = p
			break
		}
	}
	if browser == "" {
		t.Skip("no Chromium on this machine")
	}
	dir := t.TempDir()
	page, shot := filepath.Join(dir, "page.html"), filepath.Join(dir, "shot.png")
	f, err := os.Create(page)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteHTML(f, paged(t)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND", "--user-data-dir="+filepath.Join(dir, "profile"),
		"--hide-scrollbars", "--window-size=1200,2400", "--screenshot="+shot, "file://"+page)
	cmd.WaitDelay = 5 * time.Second
	timer := time.AfterFunc(60*time.Second, func() { _ = cmd.Process.Kill() })
	out, err := cmd.CombinedOutput()
	timer.Stop()
	if err != nil {
		t.Skipf("the browser does not run here: %v\n%.500s", err, out)
	}
	checkScreenshot(t, shot)
}
