package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/replay"
)

// checkOutput says early, before minutes of work, that a file named by a flag cannot be written.
func checkOutput(flag, path string) error {
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return fmt.Errorf("--%s: %s is a folder: name a file in it", flag, path)
		}
		if unix.Access(path, unix.W_OK) != nil {
			return fmt.Errorf("--%s: %s cannot be overwritten: name another file", flag, path)
		}
		if !info.Mode().IsRegular() {
			return nil
		}
	}
	if dir := filepath.Dir(path); unix.Access(dir, unix.W_OK|unix.X_OK) != nil {
		return fmt.Errorf("--%s: %s cannot be written to: make the folder or name a file elsewhere", flag, dir)
	}
	return nil
}

// writeOutput writes the file that a flag names. A regular file is complete or as it was, whatever happens; a pipe
// or a device is written to, for a file put in its place would be the end of it. A new file is the user's alone, as
// recordings are: plans and pages have the recorded command line, too.
func writeOutput(flag, path string, write func(io.Writer) error) error {
	if err := checkOutput(flag, path); err != nil {
		return err
	}
	old, err := os.Stat(path)
	special := err == nil && !old.Mode().IsRegular()
	name, how, mode := path, os.O_WRONLY, os.FileMode(0o600)
	if !special {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real // a link stays one
		}
		name, how = fmt.Sprintf("%s.%08x", path, rand.Uint32()), os.O_WRONLY|os.O_CREATE|os.O_EXCL
		if err == nil {
			mode = old.Mode().Perm()
		}
	}
	f, err := os.OpenFile(name, how, mode)
	if err == nil {
		err = write(f)
		if closed := f.Close(); err == nil {
			err = closed
		}
		if err == nil && !special {
			err = os.Rename(name, path)
		}
		if err != nil && !special {
			os.Remove(name)
		}
	}
	var file *os.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &file) && file.Path == name:
		err = file.Err
	case errors.As(err, &link):
		err = link.Err
	default:
		return err // of what was to be written
	}
	return fmt.Errorf("--%s: %s cannot be written: %w: name another file", flag, path, err)
}

// writePage renders in memory first: that it cannot is no fault of the file's.
func writePage(path string, render func(io.Writer) error) error {
	var page bytes.Buffer
	if err := render(&page); err != nil {
		return internalf("%w", err)
	}
	return writeOutput("html", path, func(w io.Writer) error {
		_, err := w.Write(page.Bytes())
		return err
	})
}

// resultsPage is a page of replays.
func resultsPage(title string, results []replay.Result) func(io.Writer) error {
	return func(w io.Writer) error { return writeHTML(w, title, results) }
}

// writeJSON prints something for machines.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
