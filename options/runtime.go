package options

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Runtime is how the engine runs in a training process.
type Runtime struct {
	Budget         int64 // device memory, bytes; 0 = unset
	HostBudget     int64 // host memory, bytes; 0 = unset
	ManagedLimit   int64 // managed memory, bytes; 0 = unset
	LookaheadBytes int64 // 0 = unset
	Engine         string
	Policy         string
	TracePath      string
	Stacks         bool
	ReportPath     string
	TimelinePath   string
	CommandPath    string // penstock's own; "" = it did not start this process
	LogLevel       string
	JSON           bool // print the verdict as JSON
	Progress       bool // say how fast the job is while it runs
	Top            bool // answer penstock top
	Verify         bool
	Replay         string
	Packs          bool
	Disable        bool
	IPC            bool // its memory can be shared with other processes

	Planning         bool
	PlanPath         string
	Stitch           string
	StitchMinBytes   int64   // 0 = unset
	StitchReuse      float64 // 0 = unset
	StitchSpaceBytes int64   // 0 = unset
}

// Defaults are the options of a process that sets none.
func Defaults() Runtime {
	return Runtime{Engine: EngineAuto, Policy: PolicyPenstock, LogLevel: "warn", Progress: true, Top: true, Replay: ReplayOff, Packs: true, Planning: true, Stitch: StitchEager}
}

// binding ties a variable to its field.
type binding struct {
	bytes func(*Runtime) *int64
	text  func(*Runtime) *string
	flag  func(*Runtime) *bool
	ratio func(*Runtime) *float64 // at least 1
}

var bindings = map[string]binding{
	"PENSTOCK_BUDGET":        {bytes: func(r *Runtime) *int64 { return &r.Budget }},
	"PENSTOCK_HOST_BUDGET":   {bytes: func(r *Runtime) *int64 { return &r.HostBudget }},
	"PENSTOCK_MANAGED_LIMIT": {bytes: func(r *Runtime) *int64 { return &r.ManagedLimit }},
	"PENSTOCK_LOOKAHEAD":     {bytes: func(r *Runtime) *int64 { return &r.LookaheadBytes }},
	"PENSTOCK_ENGINE":        {text: func(r *Runtime) *string { return &r.Engine }},
	"PENSTOCK_POLICY":        {text: func(r *Runtime) *string { return &r.Policy }},
	"PENSTOCK_TRACE":         {text: func(r *Runtime) *string { return &r.TracePath }},
	"PENSTOCK_REPORT":        {text: func(r *Runtime) *string { return &r.ReportPath }},
	"PENSTOCK_TIMELINE":      {text: func(r *Runtime) *string { return &r.TimelinePath }},
	"PENSTOCK_COMMAND":       {text: func(r *Runtime) *string { return &r.CommandPath }},
	"PENSTOCK_LOG":           {text: func(r *Runtime) *string { return &r.LogLevel }},
	"PENSTOCK_JSON":          {flag: func(r *Runtime) *bool { return &r.JSON }},
	"PENSTOCK_PROGRESS":      {flag: func(r *Runtime) *bool { return &r.Progress }},
	"PENSTOCK_TOP":           {flag: func(r *Runtime) *bool { return &r.Top }},
	"PENSTOCK_STACKS":        {flag: func(r *Runtime) *bool { return &r.Stacks }},
	"PENSTOCK_VERIFY":        {flag: func(r *Runtime) *bool { return &r.Verify }},
	"PENSTOCK_REPLAY":        {text: func(r *Runtime) *string { return &r.Replay }},
	"PENSTOCK_PACKS":         {flag: func(r *Runtime) *bool { return &r.Packs }},
	"PENSTOCK_IPC":           {flag: func(r *Runtime) *bool { return &r.IPC }},
	"PENSTOCK_DISABLE":       {flag: func(r *Runtime) *bool { return &r.Disable }},
	"PENSTOCK_PLANNING":      {flag: func(r *Runtime) *bool { return &r.Planning }},
	"PENSTOCK_PLAN":          {text: func(r *Runtime) *string { return &r.PlanPath }},
	"PENSTOCK_STITCH":        {text: func(r *Runtime) *string { return &r.Stitch }},
	"PENSTOCK_STITCH_MIN":    {bytes: func(r *Runtime) *int64 { return &r.StitchMinBytes }},
	"PENSTOCK_STITCH_REUSE":  {ratio: func(r *Runtime) *float64 { return &r.StitchReuse }},
	"PENSTOCK_STITCH_SPACE":  {bytes: func(r *Runtime) *int64 { return &r.StitchSpaceBytes }},
}

// FromEnv reads the environment that the process was started with; see the
// package's caveats for what a late-loaded library should do instead.
func FromEnv() (Runtime, error) { return FromEnviron(os.Environ()) }

// FromEnviron reads options from a list of NAME=value. Of a name given twice the
// first counts, as for C's getenv. All problems are reported, in one line.
func FromEnviron(environ []string) (Runtime, error) {
	r := Defaults()
	var problems []error
	seen := map[string]bool{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "PENSTOCK_") || seen[name] {
			continue
		}
		seen[name] = true
		if err := r.set(name, value); err != nil {
			problems = append(problems, err)
		}
	}
	return r, oneLine(problems)
}

// oneLine joins errors with "; ", because they end up in a log.
func oneLine(problems []error) error {
	if len(problems) < 2 {
		return errors.Join(problems...)
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	texts := make([]string, len(problems))
	for i, p := range problems {
		texts[i] = p.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

func (r *Runtime) set(name, value string) error {
	i := slices.IndexFunc(Table, func(o Option) bool { return o.Env == name })
	if i < 0 {
		if slices.ContainsFunc(reservedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			return nil
		}
		return fmt.Errorf("unknown variable %s: did you mean %s?", name, nearest(name))
	}
	b, bound := bindings[name]
	if !bound || value == "" {
		return nil // known to others, or unset
	}
	switch {
	case b.bytes != nil:
		n, err := ParseBytes(value)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if n == 0 {
			return fmt.Errorf("%s: %q is not above 0: unset it to have no limit", name, value)
		}
		*b.bytes(r) = n
	case b.flag != nil:
		v, ok := parseBool(value)
		if !ok {
			return fmt.Errorf("%s: %q is neither yes nor no: write 1 or 0", name, value)
		}
		*b.flag(r) = v
	case b.ratio != nil:
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v >= 1 && v <= maxRatio) {
			return fmt.Errorf("%s: %q is not a number from 1 to %d", name, value, int64(maxRatio))
		}
		*b.ratio(r) = v
	default:
		if c := Table[i].Choices; c != nil && !slices.Contains(c, value) {
			return fmt.Errorf("%s: %q is unknown: choose one of %s", name, value, strings.Join(c, ", "))
		}
		*b.text(r) = value
	}
	return nil
}

const maxRatio = 1e6

func parseBool(value string) (v, ok bool) {
	switch strings.ToLower(value) {
	case "1", "true", "yes", "on":
		return true, true
	case "0", "false", "no", "off":
		return false, true
	}
	return false, false
}

// Environ is the reverse of FromEnviron: the variables that are not at their
// defaults, sorted.
func (r Runtime) Environ() []string {
	defaults := Defaults()
	var environ []string
	for name, b := range bindings {
		switch {
		case b.bytes != nil:
			if v := *b.bytes(&r); v != 0 {
				environ = append(environ, name+"="+strconv.FormatInt(v, 10))
			}
		case b.flag != nil:
			if v := *b.flag(&r); v != *b.flag(&defaults) {
				text := "0"
				if v {
					text = "1"
				}
				environ = append(environ, name+"="+text)
			}
		case b.ratio != nil:
			if v := *b.ratio(&r); v != 0 {
				environ = append(environ, name+"="+strconv.FormatFloat(v, 'g', -1, 64))
			}
		default:
			if v := *b.text(&r); v != "" && v != *b.text(&defaults) {
				environ = append(environ, name+"="+v)
			}
		}
	}
	slices.Sort(environ)
	return environ
}
