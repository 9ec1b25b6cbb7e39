package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

const (
	engineLibrary = "libpenstock.so"
	hookLibrary   = "libpenstock_hook.so"
	torchLibrary  = "libpenstock_torch.so"
	cudaLibrary   = "libcuda.so.1"
)

// runLayout says where Penstock's parts are.
type runLayout struct {
	libs   string // the native libraries
	python string // the folder with the penstock package
}

// findLibraries finds the folder of the native libraries: the one that PENSTOCK_LIB names, or lib beside
// the executable's folder, or in the Python package whose command this is.
func findLibraries(exe, named string) (string, error) {
	if named != "" {
		abs, err := filepath.Abs(named)
		if err != nil {
			return "", fmt.Errorf("PENSTOCK_LIB: %w", err)
		}
		return abs, nil
	}
	prefix := installationPrefix(exe)
	libs := filepath.Join(prefix, "lib")
	if _, err := os.Stat(filepath.Join(libs, hookLibrary)); err == nil {
		return libs, nil
	}
	if packages := installedPackages(prefix, version); packages != "" {
		return filepath.Join(packages, "penstock", "lib"), nil
	}
	return libs, nil
}

func installationPrefix(exe string) string {
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		exe = real
	}
	return filepath.Dir(filepath.Dir(exe))
}

// installedPackages is the folder of Python packages where pip has put the wheel of a version whose command it has put
// into bin below prefix; "" when there is none. A prefix may serve several Pythons, with other versions in them.
func installedPackages(prefix, version string) string {
	for _, packages := range []string{"lib*/python3*/*-packages", "."} { // the last is pip's --target
		found, err := fs.Glob(os.DirFS(prefix), path.Join(packages, "penstock-"+version+".dist-info"))
		if err == nil && len(found) > 0 {
			return filepath.Join(prefix, filepath.Dir(found[0]))
		}
	}
	return ""
}

// requireLibraries says which of the libraries is not in a folder, and what to do.
func requireLibraries(libs, named string, names ...string) error {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(libs, name)); err != nil {
			if named != "" {
				return fmt.Errorf("%s is not in %s, the folder that PENSTOCK_LIB names: correct or unset it", name, libs)
			}
			return fmt.Errorf("%s is not in %s: run `make build`, or set PENSTOCK_LIB to the folder of the libraries", name, libs)
		}
	}
	return nil
}

// findRunLayout finds the parts of an installation: the libraries, and the Python package
// beside them or beside the folder of the executable.
func findRunLayout(exe, named string) (runLayout, error) {
	libs, err := findLibraries(exe, named)
	if err != nil {
		return runLayout{}, err
	}
	if err := requireLibraries(libs, named, engineLibrary, hookLibrary, torchLibrary); err != nil {
		return runLayout{}, err
	}
	prefix := installationPrefix(exe)
	tried := []string{
		filepath.Join(prefix, "python"),
		filepath.Join(prefix, "share", "penstock", "python"),
		filepath.Join(filepath.Dir(libs), "python"),
		filepath.Dir(filepath.Dir(libs)), // a wheel has the libraries in penstock/lib
	}
	for _, dir := range tried {
		if _, err := os.Stat(filepath.Join(dir, "penstock", "_inject", "sitecustomize.py")); err == nil {
			return runLayout{libs: libs, python: dir}, nil
		}
	}
	return runLayout{}, fmt.Errorf("the Python package penstock was not found (looked in %s): keep python/ beside bin/ and lib/", strings.Join(tried[:3], ", "))
}

// systemLibraryDirs is where the dynamic loader looks, besides its cache.
var systemLibraryDirs = systemLibraries{
	cache: "/etc/ld.so.cache",
	dirs: []string{
		"/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib",
		"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
		"/usr/local/nvidia/lib64", "/usr/local/cuda/compat", "/usr/lib/wsl/lib", "/run/opengl-driver/lib",
	},
}

type systemLibraries struct {
	cache string
	dirs  []string
}

// findRunCUDA says whether the dynamic loader will find the CUDA driver. It does
// not load it: that belongs to the program.
func findRunCUDA(libraryPath string, system systemLibraries) error {
	for _, dir := range append(filepath.SplitList(libraryPath), system.dirs...) {
		if dir == "" {
			dir = "."
		}
		if _, err := os.Stat(filepath.Join(dir, cudaLibrary)); err == nil {
			return nil
		}
	}
	// The loader's cache holds paths as NUL-terminated strings.
	if cache, err := os.ReadFile(system.cache); err == nil {
		for _, s := range bytes.Split(cache, []byte{0}) {
			if bytes.HasPrefix(s, []byte("/")) && bytes.HasSuffix(s, []byte("/"+cudaLibrary)) {
				if _, err := os.Stat(string(s)); err == nil {
					return nil
				}
			}
		}
	}
	return fmt.Errorf("%s, the CUDA driver, was not found: install the NVIDIA driver (in a container, start it with --gpus), or add its folder to LD_LIBRARY_PATH", cudaLibrary)
}
