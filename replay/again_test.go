package replay

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/internal/raced"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/testdata"
	"github.com/penstock-gpu/penstock/trace"
)

// TestReplayFigures holds the oracle with replay against what a study of the same logs found with another program: seconds with and
// without replay on a bus of 55 GB/s each way and 92 both.
func TestReplayFigures(t *testing.T) {
	raced.Skip(t)
	for i, want := range []struct {
		log             string
		ratio           float64
		swap, replaying float64
	}{
		{"gpt2m", 2, 0.099, 0.052}, {"gpt2m", 3, 0.137, 0.062}, {"resnet152", 2, 0.221, 0.125}, {"llama1b", 2, 0.407, 0.190},
		{"resnet152", 3, 0.295, 0.127}, {"llama1b", 3, 0.562, 0.208}, {"moe", 2, 0.148, 0.112}, {"gpt2l", 2, 1.193, 1.048},
		{"llama1b", 1.5, 0.268, 0.176}, {"gpt2l", 1.5, 1.041, 1.041},
	} {
		if i >= short.Of(10, 1) {
			break
		}
		r := mustRun(t, testlogs.Load(t, want.log), Options{Policy: PolicyOracle, Engine: EngineExplicit, Ratio: want.ratio, Profile: h200(t), Replay: true})
		a := r.Replay
		t.Logf("%s at %gx: %.4f s, swap %.4f, compute %.4f, %d launches of %d functions in %.4f s, %.2f GB made again, %.2f in, %.2f out, %d plans",
			want.log, want.ratio, r.IterationSeconds, a.SwapSeconds, r.ComputeSeconds, a.Launches, len(a.Functions), a.Seconds, float64(a.Bytes)/1e9,
			float64(r.H2DBytes)/1e9, float64(r.D2HBytes)/1e9, a.Plans)
		if math.Abs(a.SwapSeconds/want.swap-1) > 0.02 {
			t.Errorf("%s at %gx: %.4f s without replay, the study has %.3f", want.log, want.ratio, a.SwapSeconds, want.swap)
		}
		if r.IterationSeconds > want.replaying*1.06 || r.IterationSeconds < want.replaying*0.85 {
			t.Errorf("%s at %gx: %.4f s with replay, the study has %.3f", want.log, want.ratio, r.IterationSeconds, want.replaying)
		}
		if a.Rejected > 0 {
			t.Errorf("%s at %gx: the check rejected %d of %d plans", want.log, want.ratio, a.Rejected, a.Plans)
		}
		if a.Roles != RolesInferred {
			t.Errorf("%s: the roles are called %q", want.log, a.Roles)
		}
		physical(t, r, h200(t))
	}
}

// TestReplay: what a result says of replay adds up, and a trace with roles is not called inferred.
func TestReplay(t *testing.T) {
	raced.Skip(t)
	tr, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Policy: PolicyOracle, Engine: EngineExplicit, Ratio: 2, Profile: h200(t), Replay: true}
	r := mustRun(t, tr, o)
	if again := mustRun(t, tr, o); !reflect.DeepEqual(r, again) {
		t.Error("two runs differ")
	}
	a := r.Replay
	launches, seconds := 0, 0.0
	for _, f := range a.Functions {
		launches, seconds = launches+f.Launches, seconds+f.Seconds
	}
	o.Replay = false
	off := mustRun(t, tr, o)
	if off.Replay != nil || off.Policy != PolicyOracle || r.Policy != PolicyOracleReplay || off.IterationSeconds != a.SwapSeconds {
		t.Errorf("without replay: %+v", off)
	}
	if text, err := json.Marshal(off); err != nil || strings.Contains(string(text), "replay") {
		t.Errorf("a result without replay tells of it: %s, %v", text, err)
	}
	if launches != a.Launches || math.Abs(seconds-a.Seconds) > 1e-9 || launches == 0 || a.Bytes <= 0 {
		t.Errorf("%d launches in %g s, the functions have %d in %g", a.Launches, a.Seconds, launches, seconds)
	}
	if math.Abs(r.ComputeSeconds-off.ComputeSeconds-a.Seconds) > 1e-9 {
		t.Errorf("computing takes %g s, without replay %g, replays take %g: they are not charged in full", r.ComputeSeconds, off.ComputeSeconds, a.Seconds)
	}
	if r.IterationSeconds > 0.7*off.IterationSeconds || r.H2DBytes >= off.H2DBytes {
		t.Errorf("%g s with replay, %g without", r.IterationSeconds, off.IterationSeconds)
	}
	all := mustRun(t, tr, Options{Policy: PolicyOracle, Engine: EngineExplicit, Ratio: 1, Profile: h200(t), Replay: true})
	if all.Replay.Launches > 0 || all.Replay.Plans > 0 || all.IterationSeconds != all.Replay.SwapSeconds {
		t.Errorf("where all fits %d launches are issued again, of %d plans", all.Replay.Launches, all.Replay.Plans)
	}
}

// TestReplayRoles: a trace whose launches say what they read and write is not called inferred.
func TestReplayRoles(t *testing.T) {
	tr := network(6, 4)
	o := Options{Policy: PolicyOracle, Engine: EngineManaged, Ratio: 1.5, Profile: h200(t), Replay: true}
	if r := mustRun(t, tr, o); r.Replay.Roles != RolesInferred {
		t.Errorf("roles %q", r.Replay.Roles)
	}
	for i := range tr.Events {
		for n := range tr.Events[i].Accesses {
			tr.Events[i].Accesses[n].Mode = trace.AccessReadWrite
		}
	}
	if r := mustRun(t, tr, o); r.Replay.Roles != RolesRecorded || r.Replay.Launches > 0 {
		t.Errorf("roles %q, %d launches though everything is read and written", r.Replay.Roles, r.Replay.Launches)
	}
}

// TestReplayRefused: what has no replay says so.
func TestReplayRefused(t *testing.T) {
	for _, engine := range []string{EngineManaged, EngineExplicit} {
		for _, policy := range Policies() {
			if !Simulates(engine, policy) {
				continue
			}
			_, err := Run(t.Context(), network(4, 3), Options{Policy: policy, Engine: engine, Ratio: 1.5, Profile: h200(t), Replay: true})
			var bad *InputError
			if got := errors.As(err, &bad); got == Replays(engine, policy) {
				t.Errorf("%s: %s: %v", engine, policy, err)
			}
		}
	}
}

// TestExplicitReplay: the engine makes memory again in the simulation, which fails where that is not what was dropped; less is moved
// than without, and no less is computed.
func TestExplicitReplay(t *testing.T) {
	raced.Skip(t)
	for _, log := range []string{"gpt2m", "resnet152", "llama1b", "moe"}[:short.Of(4, 1)] {
		tr, err := testlogs.Load(t, log).Repeat(6)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Policy: PolicyPenstock, Engine: EngineExplicit, Ratio: 2, Profile: h200(t)}
		off := mustRun(t, tr, o)
		o.Replay = true
		r := mustRun(t, tr, o)
		a := r.Replay
		t.Logf("%s: %.4f s, without replay %.4f, compute %.4f, %d launches in %.4f s, %.2f GB made again, %.2f in, %.2f without",
			log, r.IterationSeconds, off.IterationSeconds, r.ComputeSeconds, a.Launches, a.Seconds, float64(a.Bytes)/1e9, float64(r.H2DBytes)/1e9, float64(off.H2DBytes)/1e9)
		if r.Policy != "penstock with replay" || a.SwapSeconds != off.IterationSeconds || a.Roles != RolesInferred {
			t.Errorf("%s: %+v", log, a)
		}
		if log == "moe" {
			continue // nearly all that it moves is state
		}
		if a.Bytes == 0 || len(a.Functions) == 0 || r.ComputeSeconds != off.ComputeSeconds || r.H2DBytes >= off.H2DBytes {
			t.Errorf("%s: %.4f s of computing and %d bytes to the device, without replay %.4f and %d", log, r.ComputeSeconds, r.H2DBytes, off.ComputeSeconds, off.H2DBytes)
		}
		seconds := 0.0
		for _, f := range a.Functions {
			seconds += f.Seconds
		}
		if math.Abs(seconds-a.Seconds) > 1e-6 {
			t.Errorf("%s: functions take %v s, all of it %v", log, seconds, a.Seconds)
		}
	}
}

// BenchmarkReplay is the search for what to make again, with the schedules of the rest.
func BenchmarkReplay(b *testing.B) {
	tr, p := testlogs.Load(b, "llama1b"), h200(b)
	for b.Loop() {
		mustRun(b, tr, Options{Policy: PolicyOracle, Engine: EngineExplicit, Ratio: 2, Profile: p, Replay: true})
	}
}
