package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// selfTestReport is what penstock_self_test writes (cabi/penstock.h).
type selfTestReport struct {
	Hook   bool `json:"hook"`
	Routes []struct {
		Name     string   `json:"name"`
		Launches int      `json:"launches"`
		Seen     int      `json:"seen"`
		Missed   []string `json:"missed"`
	} `json:"routes"`
}

// selfTestTimeout covers the start of an interpreter and of the driver's library.
const selfTestTimeout = 20 * time.Second

// selfTestProgram loads the engine's library into an interpreter that was
// started with the hook, as `penstock run` starts it.
const selfTestProgram = `import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
text = ctypes.create_string_buffer(1 << 16)
lib.penstock_self_test.restype = ctypes.c_long
n = lib.penstock_self_test(text, ctypes.c_size_t(len(text)))
if n < 0:
    lib.penstock_last_error(text, ctypes.c_size_t(len(text)))
    sys.exit(text.value.decode() or "error %d" % n)
print(text.value.decode())`

func (realMachine) selfTest(ctx context.Context, hook, engine string) (selfTestReport, error) {
	path, err := exec.LookPath("python3")
	if err != nil {
		return selfTestReport{}, errors.New("no python3 on PATH")
	}
	return askSelfTest(ctx, path, hook, engine, selfTestTimeout)
}

func askSelfTest(ctx context.Context, python, hook, engine string, timeout time.Duration) (selfTestReport, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", selfTestProgram, engine)
	env := runEnvironment{slices.Clone(os.Environ())}
	if err := env.preload(hook); err != nil {
		return selfTestReport{}, err
	}
	cmd.Env = env.environ
	cmd.WaitDelay = time.Second
	var errText bytes.Buffer
	cmd.Stderr = &errText
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return selfTestReport{}, fmt.Errorf("no answer within %v", timeout)
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(errText.String()), "\n")
		return selfTestReport{}, fmt.Errorf("%s (%v)", lines[len(lines)-1], err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var r selfTestReport
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		return selfTestReport{}, fmt.Errorf("an odd answer: %v", err)
	}
	return r, nil
}

// checkHook has launches of nothing made by every route to the driver, in a
// process started as `penstock run` starts one. libraries is where the hook is.
func checkHook(ctx context.Context, m doctorMachine, libraries string, surveys []cuda.Survey) doctorCheck {
	c := doctorCheck{Name: launchHook, Status: checkWarn}
	if len(surveys) == 0 {
		c.Found = "not tried: there is no driver to hook"
		return c
	}
	r, err := m.selfTest(ctx, filepath.Join(libraries, hookLibrary), filepath.Join(libraries, engineLibrary))
	switch {
	case err != nil:
		c.Found, c.Do = "the self-test did not run: "+err.Error(), "check that python3 runs with LD_PRELOAD set to the hook library"
	case !r.Hook:
		c.Found, c.Do = "not loaded into python3", "the loader ignores LD_PRELOAD for programs with extra privileges, and for static ones: use another python3"
	case len(r.Routes) == 0:
		c.Found, c.Do = "no route to the driver could be tried", "check that libcuda.so.1 can be loaded by python3"
	default:
		var seen, missed []string
		launches := 0
		for _, route := range r.Routes {
			if launches += route.Launches; len(route.Missed) > 0 {
				missed = append(missed, fmt.Sprintf("%s (%s)", route.Name, strings.Join(route.Missed, ", ")))
			} else {
				seen = append(seen, route.Name)
			}
		}
		if len(missed) > 0 {
			c.Found = "launches are not seen that are made by way of " + strings.Join(missed, "; ")
			c.Do = "another library that hooks CUDA stands before Penstock's: take it out of LD_PRELOAD (" + os.Getenv("LD_PRELOAD") + ")"
			break
		}
		c.Status, c.Found = checkOK, fmt.Sprintf("saw all of %d launches, by %s", launches, strings.Join(seen, ", "))
	}
	return c
}
