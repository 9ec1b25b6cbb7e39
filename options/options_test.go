package options_test

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/options"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "24GiB": 24 << 30, "3GB": 3e9, "500MiB": 500 << 20, "512M": 512 << 20, "1.5 GB": 15e8, " 2tib ": 2 << 40,
		"4k": 4096, "7B": 7, "0.5KiB": 512, ".5k": 512, "1.": 1, "1.9": 1, "1.0009765625K": 1025,
		"9223372036854775807": math.MaxInt64, "9007199254740993": 9007199254740993, "8388607TiB": 8388607 << 40,
	} {
		if got, err := options.ParseBytes(text); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "not a size", " ": "not a size", "GiB": "not a size", "lots": "not a size", "24GiBs": "not a size", "1e9": "not a size", "0x10": "not a size",
		"1.2.3": "not a size", ".": "not a size", "1/2": "not a size", "1_000": "not a size", "+5": "not a size", "NaN": "not a size", "inf": "not a size",
		"24 GiB 5": "not a size", "-1": "negative", "-5GiB": "negative", "9223372036854775808": "more than any machine", "8388608TiB": "more than any machine",
		strings.Repeat("9", 1000): "not a size", "٣GiB": "not a size",
	} {
		got, err := options.ParseBytes(text)
		if err == nil || !strings.Contains(err.Error(), want) || got != 0 {
			t.Errorf("%q: %d, %v, want %q", text, got, err, want)
		} else if len(err.Error()) > 200 || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: too long: %v", text, err)
		}
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"24GiB", "1.5 GB", "-3", "9223372036854775808", "9223372036854775807", "0.0000001T", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := options.ParseBytes(text)
		if n < 0 || err != nil && n != 0 {
			t.Errorf("%q: %d, %v", text, n, err)
		}
		if err == nil {
			if _, err := options.ParseBytes(size.Text(n)); err != nil {
				t.Errorf("%q: its own format is refused: %v", text, err)
			}
		}
	})
}

func TestFromEnviron(t *testing.T) {
	for _, c := range []struct {
		name    string
		environ []string
		change  func(*options.Runtime)
	}{
		{"nothing", []string{"HOME=/root", "PENSTOCKS=1"}, func(*options.Runtime) {}},
		{"empty is unset", []string{"PENSTOCK_BUDGET=", "PENSTOCK_POLICY=", "PENSTOCK_VERIFY="}, func(*options.Runtime) {}},
		{"all", []string{"PENSTOCK_BUDGET=24GiB", "PENSTOCK_HOST_BUDGET=100GB", "PENSTOCK_MANAGED_LIMIT=8GiB", "PENSTOCK_LOOKAHEAD=1G", "PENSTOCK_ENGINE=none",
			"PENSTOCK_POLICY=lru", "PENSTOCK_TRACE=/t=1.pstrace", "PENSTOCK_REPORT=/r.json", "PENSTOCK_LOG=debug", "PENSTOCK_JSON=1", "PENSTOCK_VERIFY=yes", "PENSTOCK_DISABLE=0",
			"PENSTOCK_PROGRESS=no", "PENSTOCK_TOP=off", "PENSTOCK_PLANNING=off", "PENSTOCK_REPLAY=insured", "PENSTOCK_PACKS=1", "PENSTOCK_STITCH=none", "PENSTOCK_STITCH_MIN=1M", "PENSTOCK_STITCH_REUSE=2.5", "PENSTOCK_STITCH_SPACE=1G"},
			func(r *options.Runtime) {
				*r = options.Runtime{Budget: 24 << 30, HostBudget: 100e9, ManagedLimit: 8 << 30, LookaheadBytes: 1 << 30, Engine: "none", Policy: "lru",
					TracePath: "/t=1.pstrace", ReportPath: "/r.json", LogLevel: "debug", JSON: true, Verify: true, Replay: "insured", Packs: true, Stitch: "none", StitchMinBytes: 1 << 20, StitchReuse: 2.5, StitchSpaceBytes: 1 << 30}
			}},
		{"first wins", []string{"PENSTOCK_BUDGET=1", "PENSTOCK_BUDGET=2"}, func(r *options.Runtime) { r.Budget = 1 }},
		{"others' variables", []string{"PENSTOCK_LIB=/lib", "PENSTOCK_ACTIVE=1", "PENSTOCK_RESTARTED=x", "PENSTOCK_BENCH_STATS=1", "PENSTOCK_TEST_X=1"}, func(*options.Runtime) {}},
	} {
		want := options.Defaults()
		c.change(&want)
		got, err := options.FromEnviron(c.environ)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, want)
		}
		again, err := options.FromEnviron(got.Environ())
		if err != nil || again != got {
			t.Errorf("%s: round trip through %v: %+v, %v", c.name, got.Environ(), again, err)
		}
	}
}

func TestFromEnvironErrors(t *testing.T) {
	for kv, want := range map[string]string{
		"PENSTOCK_BUGDET=24GiB":       "unknown variable PENSTOCK_BUGDET: did you mean PENSTOCK_BUDGET?",
		"PENSTOCK_HOSTBUDGET=1":       "did you mean PENSTOCK_HOST_BUDGET?",
		"PENSTOCK_LOG_LEVEL=debug":    "did you mean PENSTOCK_LO",
		"PENSTOCK_LIMIT=1":            "did you mean",
		"PENSTOCK_=1":                 "unknown variable PENSTOCK_:",
		"PENSTOCK_BUDGET=much":        `PENSTOCK_BUDGET: "much" is not a size`,
		"PENSTOCK_BUDGET=0":           "not above 0",
		"PENSTOCK_BUDGET=-1GiB":       "negative",
		"PENSTOCK_ENGINE=magic":       `PENSTOCK_ENGINE: "magic" is unknown: choose one of managed, explicit, none, auto`,
		"PENSTOCK_POLICY=oracle":      "choose one of naive, lru, deepum, penstock",
		"PENSTOCK_LOG=loud":           "choose one of debug, info, warn, error",
		"PENSTOCK_VERIFY=perhaps":     "write 1 or 0",
		"PENSTOCK_STITCH=always":      "choose one of eager, lazy, none",
		"PENSTOCK_STITCH_REUSE=0.5":   "not a number from 1 to",
		"PENSTOCK_STITCH_REUSE=NaN":   "not a number from 1 to",
		"PENSTOCK_MANAGED_LIMIT=1e99": "PENSTOCK_MANAGED_LIMIT",
	} {
		if _, err := options.FromEnviron([]string{kv}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", kv, err, want)
		}
	}
	_, err := options.FromEnviron([]string{"PENSTOCK_POLICY=x", "PENSTOCK_BUDGET=y"})
	if err == nil || !strings.Contains(err.Error(), "PENSTOCK_POLICY") || !strings.Contains(err.Error(), "PENSTOCK_BUDGET") || strings.Contains(err.Error(), "\n") {
		t.Errorf("two problems: %v", err)
	}
}

func TestFromEnv(t *testing.T) {
	t.Setenv("PENSTOCK_BUDGET", "3GiB")
	if r, err := options.FromEnv(); err != nil || r.Budget != 3<<30 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Environ must carry every field: one that is forgotten in the bindings would
// not reach the process.
func TestEnvironCarriesEveryField(t *testing.T) {
	values := map[string]string{"Engine": "auto", "Policy": "naive", "LogLevel": "error", "Stitch": "lazy", "Replay": "insured"}
	typ := reflect.TypeFor[options.Runtime]()
	for i := range typ.NumField() {
		r := options.Defaults()
		f := reflect.ValueOf(&r).Elem().Field(i)
		switch f.Kind() {
		case reflect.Int64:
			f.SetInt(12345)
		case reflect.Float64:
			f.SetFloat(12.5)
		case reflect.Bool:
			f.SetBool(!f.Bool())
		case reflect.String:
			f.SetString("/some/file")
			if v, ok := values[typ.Field(i).Name]; ok {
				f.SetString(v)
			}
		default:
			t.Fatalf("%s: teach this test about %s", typ.Field(i).Name, f.Kind())
		}
		if got, err := options.FromEnviron(r.Environ()); err != nil || got != r {
			t.Errorf("%s is lost: %v, %v", typ.Field(i).Name, r.Environ(), err)
		}
	}
}

func TestTable(t *testing.T) {
	envs := map[string]bool{}
	flags := map[string]bool{}
	for _, o := range options.Table {
		if o.Env == "" && o.Flag == "" || o.Doc == "" || o.Type == "" {
			t.Errorf("%+v is incomplete", o)
		}
		if o.Env != "" {
			if envs[o.Env] || !strings.HasPrefix(o.Env, "PENSTOCK_") {
				t.Errorf("%s is listed twice or badly named", o.Env)
			}
			envs[o.Env] = true
		}
		if (o.Flag == "") != (len(o.Commands) == 0) {
			t.Errorf("%s%s: a flag without command or the reverse", o.Env, o.Flag)
		}
		for _, c := range o.Commands {
			if flags[c+" "+o.Flag] {
				t.Errorf("%s --%s is listed twice", c, o.Flag)
			}
			flags[c+" "+o.Flag] = true
			if found, ok := options.Lookup(c, o.Flag); !ok || found.Doc != o.Doc {
				t.Errorf("%s --%s is not found", c, o.Flag)
			}
		}
		if o.Type == options.TypeChoice && o.Default != "" && o.Choices != nil && !slices.Contains(o.Choices, o.Default) {
			t.Errorf("%s%s: the default %q is no choice", o.Env, o.Flag, o.Default)
		}
	}
}

// Run "go generate ./options" when this fails.
func TestDocsAreFresh(t *testing.T) {
	got, err := os.ReadFile(filepath.Join("..", "docs", "options.md"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != options.Markdown() {
		t.Error("docs/options.md is stale: run go generate ./options")
	}
}

var readsVariable = regexp.MustCompile(`(?:getenv|Getenv|LookupEnv|environ(?:\.get)?)\s*[(\[]\s*"(PENSTOCK_[A-Z0-9_]+)"`)

// Whoever reads a variable anywhere in the repository must have it in the table.
func TestEveryVariableReadIsInTheTable(t *testing.T) {
	known := map[string]bool{}
	for _, o := range options.Table {
		known[o.Env] = true
	}
	files := 0
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != ".." && (strings.HasPrefix(name, ".") || name == "build" || name == "tests") {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".c", ".cc", ".cpp", ".h", ".py"}, filepath.Ext(path)) || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil // being written by a build, perhaps
		}
		files++
		for _, m := range readsVariable.FindAllSubmatch(text, -1) {
			name := string(m[1])
			if !known[name] && !strings.HasPrefix(name, "PENSTOCK_BENCH_") && !strings.HasPrefix(name, "PENSTOCK_TEST_") {
				t.Errorf("%s reads %s, which is not in options.Table", path, name)
			}
		}
		return nil
	})
	if err != nil || files < 10 {
		t.Fatalf("looked at %d files: %v", files, err)
	}
}
