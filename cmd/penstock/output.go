package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/replay"
)

// checkPage says early that a page cannot be written, before minutes of replay.
func checkPage(path string) error { return checkOutput("html", path) }

// checkOutput says early that a file named by a flag cannot be written.
func checkOutput(flag, path string) error {
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return fmt.Errorf("--%s: %s is a folder: name a file in it", flag, path)
		}
		if unix.Access(path, unix.W_OK) != nil {
			return fmt.Errorf("--%s: %s cannot be overwritten: name another file", flag, path)
		}
		return nil
	}
	if dir := filepath.Dir(path); unix.Access(dir, unix.W_OK|unix.X_OK) != nil {
		return fmt.Errorf("--%s: %s cannot be written to: make the folder or name a file elsewhere", flag, dir)
	}
	return nil
}

// writePage renders in memory first, so that a failure leaves an old page as it was.
func writePage(path, title string, results []replay.Result) error {
	var page bytes.Buffer
	if err := writeHTML(&page, title, results); err != nil {
		return internalf("%w", err)
	}
	if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--html: %w: name another file", err)
	}
	return nil
}
