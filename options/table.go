package options

// Type says what the values of an option look like.
type Type string

// The types of options.
const (
	TypeBytes  Type = "size"   // see ParseBytes
	TypeChoice Type = "choice" // one of Choices
	TypeFile   Type = "file"
	TypeFiles  Type = "files" // the flag given again
	TypeFolder Type = "folder"
	TypeBool   Type = "yes/no" // 1 or 0 in a variable
	TypeNumber Type = "number"
	TypeTime   Type = "time" // Go's durations: 500ms, 60s, 2m
	TypeList   Type = "list" // separated by commas
)

// Option is one row of the table.
type Option struct {
	Env      string   // the variable; empty for options of a simulation
	Flag     string   // without the dashes; empty when there is only the variable
	Commands []string // the commands that have the flag
	Type     Type
	Choices  []string
	Default  string // as a user would write it; empty is none
	Doc      string // one sentence, without full stop; what the default means comes in brackets
	Internal bool   // set by Penstock itself or by its tests
}

// Table is every option there is.
var Table = []Option{
	// Running a program.
	{Env: "PENSTOCK_BUDGET", Flag: "budget", Commands: []string{"run", "jupyter install"}, Type: TypeBytes,
		Doc: "device memory to use, of each process, so of each GPU (all that the card has free)"},
	{Env: "PENSTOCK_HOST_BUDGET", Flag: "host-budget", Commands: []string{"run", "jupyter install"}, Type: TypeBytes,
		Doc: "host memory to use for what does not fit on the device, of each process (most of what is available, shared by the processes of the job on this host: LOCAL_WORLD_SIZE, else WORLD_SIZE)"},
	{Env: "PENSTOCK_MANAGED_LIMIT", Type: TypeBytes,
		Doc: "most managed memory that the process may ever allocate, a safety net under all else (no limit)"},
	{Env: "PENSTOCK_ENGINE", Flag: "engine", Commands: []string{"run", "jupyter install"}, Type: TypeChoice, Choices: Engines, Default: EngineAuto,
		Doc: "how bytes move: through unified memory, through explicit copies, not at all (none is an allocator and no more), or explicitly where this machine can and else through unified memory (auto)"},
	{Env: "PENSTOCK_POLICY", Flag: "policy", Commands: []string{"run", "jupyter install"}, Type: TypeChoice, Choices: Policies, Default: PolicyPenstock,
		Doc: "what is moved when"},
	{Env: "PENSTOCK_TRACE", Flag: "trace", Commands: []string{"run"}, Type: TypeFile,
		Doc: "record the run to this file; in a job of several processes t.pstrace is t.rank1.pstrace for rank 1 (not recorded)"},
	{Env: "PENSTOCK_STACKS", Flag: "stacks", Commands: []string{"run"}, Type: TypeBool, Default: "0",
		Doc: "with --trace, record where in the Python program each allocation is made"},
	{Env: "PENSTOCK_REPORT", Flag: "report", Commands: []string{"run"}, Type: TypeFile,
		Doc: "write the verdict at exit to this file as JSON; in a job of several processes r.json is r.rank1.json for rank 1 (not written)"},
	{Env: "PENSTOCK_TIMELINE", Flag: "timeline", Commands: []string{"run"}, Type: TypeFile,
		Doc: "write what the explicit engine did when, and what the job waited for, to this file at exit, for penstock report timeline and ui.perfetto.dev; in a job of several processes t.json is t.rank1.json for rank 1 (not written)"},
	{Env: "PENSTOCK_JSON", Flag: "json", Commands: []string{"run"}, Type: TypeBool, Default: "0",
		Doc: "print the verdict at exit as JSON, one line of each process"},
	{Env: "PENSTOCK_LOG", Type: TypeChoice, Choices: []string{"debug", "info", "warn", "error"}, Default: "warn",
		Doc: "how much is logged to stderr"},
	{Env: "PENSTOCK_PROGRESS", Type: TypeBool, Default: "1",
		Doc: "say on stderr how near the job is to the speed in memory, once it has been learned and when that changes much; never with --json or PENSTOCK_LOG=error"},
	{Env: "PENSTOCK_TOP", Type: TypeBool, Default: "1",
		Doc: "answer penstock top of the same user, by a socket in XDG_RUNTIME_DIR/penstock, or else in penstock-UID in the temporary folder"},
	{Env: "PENSTOCK_LOOKAHEAD", Type: TypeBytes,
		Doc: "most bytes to bring to the device ahead of need (as much as displaces nothing that is needed sooner)"},
	{Env: "PENSTOCK_PLANNING", Type: TypeBool, Default: "1",
		Doc: "plan where the allocations of an iteration lie, once one has been seen; without, they are only stitched"},
	{Env: "PENSTOCK_PLAN", Type: TypeFile,
		Doc: "follow this plan, made by penstock plan of a recording of the same job, from the first allocation on (a plan is made while the job runs)"},
	{Env: "PENSTOCK_STITCH", Type: TypeChoice, Choices: Strategies, Default: StitchEager,
		Doc: "when scattered free device memory is made one range: before more is taken, only when there is no more, or not at all (GMLake's defragLevel)"},
	{Env: "PENSTOCK_STITCH_MIN", Type: TypeBytes, Default: "8MiB",
		Doc: "smallest request that is served by stitching before more memory is taken (GMLake's fragLimit)"},
	{Env: "PENSTOCK_STITCH_REUSE", Type: TypeNumber, Default: "10",
		Doc: "how many times larger than a request a stitched range may be to serve it again (GMLake's reuseLimit); it costs addresses only"},
	{Env: "PENSTOCK_STITCH_SPACE", Type: TypeBytes, Default: "256GiB",
		Doc: "most addresses of stitched ranges; the least recently used one that is free is given up (GMLake's autoGC)"},
	{Env: "PENSTOCK_VERIFY", Flag: "verify", Commands: []string{"run"}, Type: TypeBool, Default: "0",
		Doc: "the explicit engine checks every move with checksums before and after"},
	{Env: "PENSTOCK_REPLAY", Flag: "replay", Commands: []string{"run", "jupyter install"}, Type: TypeChoice, Choices: Replays, Default: ReplayOff,
		Doc: "what the explicit engine makes again, by the launches that made it, instead of moving it. insured: a copy leaves all the same, and comes in where what is made is not the same; on: no copy leaves, once a kernel has made the same often enough"},
	{Env: "PENSTOCK_PACKS", Type: TypeBool, Default: "1",
		Doc: "the explicit engine gives small allocations that are made and freed together, and large ones of one size that pages fit badly, one range, which moves as one; never while recording"},
	{Env: "PENSTOCK_IPC", Flag: "ipc", Commands: []string{"run"}, Type: TypeBool, Default: "0",
		Doc: "CUDA tensors can be sent to other processes (torch.multiprocessing), under the explicit engine"},

	// Simulating.
	{Flag: "trace", Commands: []string{"simulate"}, Type: TypeFile,
		Doc: "the recording (.pstrace) or launch log (.tsv, .tsv.gz) to replay"},
	{Flag: "trace", Commands: []string{"bench"}, Type: TypeFiles,
		Doc: "the recordings or launch logs to replay; they can be named as arguments too (the shipped one)"},
	{Flag: "ratio", Commands: []string{"simulate"}, Type: TypeNumber,
		Doc: "oversubscription: peak live bytes over the budget, at least 1"},
	{Flag: "ratios", Commands: []string{"bench"}, Type: TypeList, Default: "1.5,2,3",
		Doc: "oversubscription ratios to replay at"},
	{Flag: "budget", Commands: []string{"simulate"}, Type: TypeBytes,
		Doc: "device memory of the simulated run, instead of a ratio"},
	{Flag: "policy", Commands: []string{"simulate"}, Type: TypeChoice, Choices: simulated(), Default: PolicyPenstock,
		Doc: "what is moved when; oracle knows the future and is the bound"},
	{Flag: "policies", Commands: []string{"bench"}, Type: TypeList, Choices: simulated(), Default: "naive,lru,deepum,penstock,oracle",
		Doc: "policies to replay under"},
	{Flag: "engine", Commands: []string{"simulate"}, Type: TypeChoice, Choices: []string{EngineManaged, EngineExplicit}, Default: EngineManaged,
		Doc: "how bytes move; explicit has the policies penstock, lru and oracle"},
	{Flag: "engines", Commands: []string{"bench"}, Type: TypeList, Choices: []string{EngineManaged, EngineExplicit}, Default: "managed,explicit",
		Doc: "engines to replay with; explicit has the policies penstock, lru and oracle, and leaves the others out"},
	{Flag: "gpu", Commands: []string{"simulate", "bench"}, Type: TypeChoice, Default: "h200",
		Doc: "profile of the simulated card, its bus and its driver"},
	{Flag: "bus", Commands: []string{"simulate"}, Type: TypeList,
		Doc: "GB/s in and out that the oracle of the explicit engine may move, and what both ways carry together where that is less than both, as a report has them (those of --gpu)"},
	{Flag: "launch-cost", Commands: []string{"simulate"}, Type: TypeTime, Default: "3.8us",
		Doc: "CPU time of the job from one launch to the next: its iteration in memory over its launches, when its CPU keeps it back; the oracle spends none unless this is given"},
	{Flag: "iterations", Commands: []string{"simulate"}, Type: TypeNumber,
		Doc: "play the last full iteration again until so many have run, and report the last: a job comes to rest after more of them than most logs hold (as recorded)"},
	{Flag: "replay", Commands: []string{"simulate"}, Type: TypeChoice, Choices: []string{ReplayOn, ReplayOff}, Default: ReplayOff,
		Doc: "on: memory may be given up instead of being moved, and the launches issued again that made it; the oracle has it, and penstock in the explicit engine"},
	{Flag: "packs", Commands: []string{"simulate"}, Type: TypeBool, Default: "true",
		Doc: "as PENSTOCK_PACKS, in the explicit engine; --packs=false is without"},
	{Flag: "json", Commands: []string{"simulate", "bench"}, Type: TypeBool, Default: "false",
		Doc: "print results as JSON"},
	{Flag: "csv", Commands: []string{"bench"}, Type: TypeBool, Default: "false",
		Doc: "print results as CSV"},
	{Flag: "accept-damaged", Commands: []string{"simulate", "bench"}, Type: TypeBool, Default: "false",
		Doc: "of a damaged or truncated trace, use the part before the damage"},
	{Flag: "html", Commands: []string{"bench"}, Type: TypeFile,
		Doc: "write a page with plots to this file (none)"},
	{Flag: "html", Commands: []string{"demo"}, Type: TypeFile, Default: "demo.html",
		Doc: "write the page with plots to this file"},
	{Flag: "sizes", Commands: []string{"bench stitch"}, Type: TypeList, Default: "2MiB,20MiB,64MiB",
		Doc: "sizes of the physical handles to measure"},
	{Flag: "total", Commands: []string{"bench stitch"}, Type: TypeBytes, Default: "1GiB",
		Doc: "memory to stitch"},
	{Flag: "json", Commands: []string{"bench stitch"}, Type: TypeBool, Default: "false",
		Doc: "print the measurements as JSON"},
	{Flag: "json", Commands: []string{"doctor"}, Type: TypeBool, Default: "false",
		Doc: "print the diagnosis as JSON"},
	{Flag: "job", Commands: []string{"doctor"}, Type: TypeFile,
		Doc: "say what the job of this recording, launch log, PyTorch memory snapshot or RMM log will need, and whether this machine has it"},
	{Flag: "params", Commands: []string{"doctor"}, Type: TypeNumber,
		Doc: "the same of a model with so many parameters, such as 8e9 or 8B; with --job only what is said for each 1 B parameters"},
	{Flag: "dtype", Commands: []string{"doctor"}, Type: TypeChoice, Choices: []string{"fp32", "amp", "bf16", "fp16"}, Default: "bf16",
		Doc: "with --params, what the weights are; amp is fp32 under autocast"},
	{Flag: "optimizer", Commands: []string{"doctor"}, Type: TypeChoice, Choices: []string{"adamw", "adam8bit", "sgd", "sgd-momentum"}, Default: "adamw",
		Doc: "with --params, what keeps states; of the weights' dtype, but for 8 bits"},
	{Flag: "master-weights", Commands: []string{"doctor"}, Type: TypeBool, Default: "false",
		Doc: "with --params, fp32 weights and states are kept beside weights of 16 bits"},
	{Flag: "activations", Commands: []string{"doctor"}, Type: TypeBytes,
		Doc: "with --params, the activations at their peak (not known, and left out)"},
	{Flag: "budget", Commands: []string{"doctor"}, Type: TypeBytes,
		Doc: "with --job or --params, device memory to use (all of the card's)"},
	{Flag: "json", Commands: []string{"measure"}, Type: TypeBool, Default: "false",
		Doc: "print what was measured as JSON"},
	{Flag: "host-budget", Commands: []string{"measure"}, Type: TypeBytes, Default: "8GiB",
		Doc: "pinned host memory to measure with"},

	// Planning, and looking at memory.
	{Flag: "trace", Commands: []string{"plan"}, Type: TypeFile,
		Doc: "plan the allocations of this recording, launch log, PyTorch memory snapshot or RMM log"},
	{Flag: "csv", Commands: []string{"plan"}, Type: TypeFile,
		Doc: "place the requests of this file, id,lower,upper,size as google/minimalloc has them"},
	{Flag: "capacity", Commands: []string{"plan"}, Type: TypeBytes,
		Doc: "be content with a plan that needs at most so much (as little as can be)"},
	{Flag: "time", Commands: []string{"plan"}, Type: TypeTime, Default: "60s",
		Doc: "search no longer than this; it ends earlier when nothing better is to be expected"},
	{Flag: "out", Commands: []string{"plan"}, Type: TypeFile,
		Doc: "write the plan (of a trace) or the placements id,offset (of a CSV file) to this file (not written)"},
	{Flag: "json", Commands: []string{"plan"}, Type: TypeBool, Default: "false",
		Doc: "print the result as JSON"},
	{Flag: "json", Commands: []string{"report fragmentation"}, Type: TypeBool, Default: "false",
		Doc: "print the report as JSON"},
	{Flag: "html", Commands: []string{"report fragmentation"}, Type: TypeFile,
		Doc: "write a page with plots to this file, too (none)"},
	{Flag: "accept-damaged", Commands: []string{"plan", "report fragmentation", "doctor"}, Type: TypeBool, Default: "false",
		Doc: "of a damaged or truncated trace, use the part before the damage"},

	// Looking at time.
	{Flag: "from", Commands: []string{"report timeline"}, Type: TypeTime,
		Doc: "begin so long after the engine's start (with the first move)"},
	{Flag: "to", Commands: []string{"report timeline"}, Type: TypeTime,
		Doc: "end so long after the engine's start (with the last move)"},
	{Flag: "last", Commands: []string{"report timeline"}, Type: TypeTime,
		Doc: "show only so much, up to the last move (all)"},
	{Flag: "html", Commands: []string{"report timeline"}, Type: TypeFile,
		Doc: "write a page that draws it to this file, too (none)"},
	{Flag: "json", Commands: []string{"report timeline"}, Type: TypeBool, Default: "false",
		Doc: "print the report as JSON"},

	// Looking at faults.
	{Flag: "for", Commands: []string{"doctor"}, Type: TypeChoice, Choices: []string{"engine", "explicit", "managed", "faults", "pid", "system"}, Default: "engine",
		Doc: "what the exit status answers for: either engine, the explicit or the managed one, or one of the ways to record faults"},
	{Flag: "output", Commands: []string{"faults record"}, Type: TypeFile, Default: "faults.pstrace",
		Doc: "write the recording to this file"},
	{Flag: "pid", Commands: []string{"faults record", "faults top", "serve"}, Type: TypeNumber,
		Doc: "listen to a process that runs already"},
	{Flag: "pid", Commands: []string{"top"}, Type: TypeNumber,
		Doc: "show this process only (all jobs of this user; of all users for root)"},
	{Flag: "system", Commands: []string{"faults record", "faults top", "serve"}, Type: TypeBool, Default: "false",
		Doc: "listen to all processes, by eBPF (as root)"},
	{Flag: "cgroup", Commands: []string{"faults record"}, Type: TypeFolder,
		Doc: "with --system, only the processes of this control group (a container's; see /proc/PID/cgroup)"},
	{Flag: "batch", Commands: []string{"faults top", "top"}, Type: TypeBool, Default: "false",
		Doc: "print text instead of the live view"},
	{Flag: "interval", Commands: []string{"faults top", "top"}, Type: TypeNumber, Default: "1",
		Doc: "seconds from one look to the next"},
	{Flag: "count", Commands: []string{"faults top"}, Type: TypeNumber, Default: "0",
		Doc: "with --batch, how many times to print (until the end)"},
	{Flag: "json", Commands: []string{"top"}, Type: TypeBool, Default: "false",
		Doc: "print JSON instead of the live view: a line for each job at each look"},
	{Flag: "count", Commands: []string{"top"}, Type: TypeNumber, Default: "0",
		Doc: "with --batch or --json, how many times to look (until no job is left)"},
	{Flag: "listen", Commands: []string{"serve"}, Type: TypeChoice, Default: "127.0.0.1:9464",
		Doc: "loopback address to answer at"},
	{Flag: "seconds", Commands: []string{"faults record"}, Type: TypeNumber,
		Doc: "with --pid or --system, stop after so long (when the process ends, or at an interrupt)"},
	{Flag: "budget", Commands: []string{"faults record"}, Type: TypeBytes,
		Doc: "run the command under Penstock with so much device memory, as penstock run does (it is only observed)"},
	{Flag: "policy", Commands: []string{"faults record"}, Type: TypeChoice, Choices: Policies,
		Doc: "run the command under Penstock with this policy (it is only observed)"},
	{Flag: "stacks", Commands: []string{"faults record"}, Type: TypeBool, Default: "false",
		Doc: "with --budget or --policy, record where in the Python program each allocation is made"},
	{Flag: "view", Commands: []string{"faults report"}, Type: TypeList, Default: "summary,causes,kernels,allocations,phases,migrations",
		Doc: "views to show, or all"},
	{Flag: "format", Commands: []string{"faults report"}, Type: TypeChoice, Choices: []string{"table", "csv", "json", "md", "html"}, Default: "table",
		Doc: "how to write them; html is one page with all views"},
	{Flag: "output", Commands: []string{"faults report", "faults export"}, Type: TypeFile,
		Doc: "write to this file (the standard output)"},
	{Flag: "format", Commands: []string{"faults export"}, Type: TypeChoice, Choices: []string{"chrome", "pprof", "csv", "jsonl", "prometheus"},
		Doc: "the format to write"},
	{Flag: "merge", Commands: []string{"faults export"}, Type: TypeFile,
		Doc: "with --format chrome, a trace of torch.profiler to put into the same file (none)"},
	{Flag: "json", Commands: []string{"faults explain", "faults diff"}, Type: TypeBool, Default: "false",
		Doc: "print JSON"},

	{Flag: "name", Commands: []string{"jupyter install"}, Type: TypeChoice, Default: "penstock",
		Doc: "name of the kernel: letters, digits, dots, dashes and underscores"},
	{Flag: "display-name", Commands: []string{"jupyter install"}, Type: TypeChoice,
		Doc: "how Jupyter shows it (Python with Penstock, and the budget)"},
	{Flag: "python", Commands: []string{"jupyter install"}, Type: TypeFile, Default: "python3",
		Doc: "the Python whose programs it runs, which has ipykernel"},
	{Flag: "prefix", Commands: []string{"jupyter install", "jupyter list", "jupyter remove"}, Type: TypeFolder,
		Doc: "environment that Jupyter runs in, as \"$VIRTUAL_ENV\" (the user's own kernels, which every Jupyter shows)"},
	{Flag: "user", Commands: []string{"jupyter install", "jupyter list", "jupyter remove"}, Type: TypeBool, Default: "false",
		Doc: "the user's own kernels, as without --prefix"},
	{Flag: "json", Commands: []string{"jupyter list"}, Type: TypeBool, Default: "false",
		Doc: "print the kernels as JSON"},

	{Flag: "json", Commands: []string{"report bound"}, Type: TypeBool, Default: "false",
		Doc: "print the report's fields as JSON, a line each time that one more is found: the last has all"},

	// Not for setting by hand, but known.
	{Env: "PENSTOCK_LIB", Type: TypeFolder,
		Doc: "folder of the native libraries (lib/ beside bin/, or the Python package)"},
	{Env: "PENSTOCK_DISABLE", Type: TypeBool, Default: "0",
		Doc: "leave a program started by penstock run alone"},
	{Env: "PENSTOCK_ACTIVE", Type: TypeBool, Internal: true,
		Doc: "the process was started by penstock run"},
	{Env: "PENSTOCK_COMMAND", Type: TypeFile, Internal: true,
		Doc: "the penstock command that the process asks at its end for the speed of an oracle; penstock run sets it to itself"},
	{Env: "PENSTOCK_OBSERVE", Type: TypeBool, Internal: true,
		Doc: "the process was started by penstock faults record: the hook loads the recorder"},
	{Env: "PENSTOCK_WORKER", Type: TypeBool, Internal: true,
		Doc: "the process is one of several that the program made (multiprocessing, or a fork)"},
	{Env: "PENSTOCK_WARNED", Type: TypeBool, Internal: true,
		Doc: "a process that started this one has said that this version of PyTorch was not tried"},
	{Env: "PENSTOCK_RESTARTED", Type: TypeFile, Internal: true,
		Doc: "the hook that penstock.enable(restart=True) started the interpreter again with"},
}

// Engines, strategies of stitching, and policies of a real run. Simulations have the oracle besides.
const (
	EngineManaged  = "managed"
	EngineExplicit = "explicit"
	EngineNone     = "none"
	EngineAuto     = "auto"

	StitchEager = "eager"
	StitchLazy  = "lazy"
	StitchNone  = "none"

	ReplayOn  = "on"
	ReplayOff = "off"
	// ReplayInsured is that of a real run.
	ReplayInsured = "insured"

	PolicyNaive    = "naive"
	PolicyLRU      = "lru"
	PolicyDeepUM   = "deepum"
	PolicyPenstock = "penstock"
)

// Engines, Policies and Replays are the choices of a real run.
var (
	Engines  = []string{EngineManaged, EngineExplicit, EngineNone, EngineAuto}
	Policies = []string{PolicyNaive, PolicyLRU, PolicyDeepUM, PolicyPenstock}
	Replays  = []string{ReplayOff, ReplayInsured, ReplayOn}
	// Strategies are those of stitching.
	Strategies = []string{StitchEager, StitchLazy, StitchNone}
)

func simulated() []string { return append(append([]string(nil), Policies...), "oracle") }

// reservedPrefixes are variables of Penstock's own tests and benchmarks, which
// may be set around a run and mean nothing to it.
var reservedPrefixes = []string{"PENSTOCK_BENCH_", "PENSTOCK_TEST_"}

// Lookup finds the flag of a command.
func Lookup(command, flag string) (Option, bool) {
	for _, o := range Table {
		for _, c := range o.Commands {
			if c == command && o.Flag == flag {
				return o, true
			}
		}
	}
	return Option{}, false
}
