package e2e

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

type selfTest struct {
	Hook   bool `json:"hook"`
	Routes []struct {
		Name     string   `json:"name"`
		Launches int      `json:"launches"`
		Seen     int      `json:"seen"`
		Missed   []string `json:"missed"`
	} `json:"routes"`
}

// sharedLibrary builds a library of C into the build directory.
func sharedLibrary(t *testing.T, out, source string, args ...string) string {
	t.Helper()
	need(t)
	path := filepath.Join(buildDir, out)
	build, _ := programs.LoadOrStore(out, sync.OnceValue(func() error {
		all := []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-Wl,-soname," + filepath.Base(out), "-o", path, source}
		return command("gcc", append(append(all, args...), "-ldl")...)
	}))
	if err := build.(func() error)(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSelfTest leads programs past the hook by one route after the other: the
// self-test finds which, the verdict names it, and the job is none the worse.
func TestSelfTest(t *testing.T) {
	t.Parallel()
	small := program(t, "small")
	hookPath := filepath.Join(buildDir, "libpenstock_hook.so")
	bypass := func(route string) string {
		return "LD_PRELOAD=" + sharedLibrary(t, "bypass-"+route+".so", "testdata/bypass.c", "-D"+route) + ":" + hookPath
	}
	// A runtime that asks the driver through the hook, and one that had asked it before.
	runtime := sharedLibrary(t, "libcudart.so.99", "../hooktest/testdata/cudart.c")
	early := sharedLibrary(t, "libcudart.so.98", "../hooktest/testdata/cudart.c", "-DBYPASS", "-Wl,--no-as-needed", filepath.Join(buildDir, "libcuda.so.1"))
	always := []string{"linked symbol", "dlsym", "dlsym@GLIBC_2.2.5", "cuGetProcAddress", "cuGetProcAddress_v2"}
	all := []string{"cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz", "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz"}
	for _, c := range []struct {
		name   string
		env    []string
		routes []string
		missed map[string][]string
	}{
		{"nothing in the way", nil, always, nil},
		{"runtime", []string{"RUNTIME=" + runtime}, append(slices.Clone(always), "libcudart.so.99"), nil},
		{"linked", []string{bypass("LINKED")}, always, map[string][]string{"linked symbol": {"cuLaunchKernel"}}},
		{"dlsym", []string{bypass("DLSYM")}, always, map[string][]string{"dlsym": all, "dlsym@GLIBC_2.2.5": all}},
		{"cuGetProcAddress", []string{bypass("GETPROC")}, always, map[string][]string{"cuGetProcAddress": all, "cuGetProcAddress_v2": all}},
		// Its answers are replaced where it gives them out; its own table is beyond reach.
		{"early runtime", []string{"RUNTIME=" + early}, append(slices.Clone(always), "libcudart.so.98"), map[string][]string{"libcudart.so.98": {"cudaMemsetAsync"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := mustRun(t, c.env, small, "selftest")
			var found selfTest
			if err := json.Unmarshal([]byte(r.line(t, "SELFTEST")), &found); err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, route := range found.Routes {
				names = append(names, route.Name)
				want := c.missed[route.Name]
				if strings.HasPrefix(route.Name, "libcudart") {
					want = nil // its own calls are only made when the engine starts
				}
				if !slices.Equal(route.Missed, want) {
					t.Errorf("%s: %q missed, want %q", route.Name, route.Missed, want)
				}
			}
			if !found.Hook || !slices.Equal(names, c.routes) {
				t.Errorf("routes %q, want %q", names, c.routes)
			}
			for route, functions := range c.missed {
				for _, who := range []string{"the hook: another preloaded", "penstock: warning: launches by way of " + route + " (" + strings.Join(functions, ", ") + ")"} {
					if !strings.Contains(r.stderr, who) {
						t.Errorf("stderr lacks %q:\n%s", who, r.stderr)
					}
				}
			}
			if len(c.missed) == 0 && (strings.Contains(r.stderr, "not seen by the hook") || strings.Contains(r.stderr, "warning: launches by way of")) {
				t.Errorf("a false alarm:\n%s", r.stderr)
			}
		})
	}
}
