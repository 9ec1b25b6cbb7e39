package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/penstock-gpu/penstock/um"
)

func runEngine(value string) (string, error) {
	if value != "managed" {
		return "", fmt.Errorf("unknown engine %q: choose managed", value)
	}
	return value, nil
}

func runPolicy(value string) (string, error) {
	if _, err := um.PolicyByName(value); err != nil {
		return "", err
	}
	return value, nil
}

func runBytes(value string) (string, error) {
	n, err := parseRunBytes(value)
	if err != nil {
		return "", err
	}
	return strconv.FormatInt(n, 10), nil
}

// runOutput makes a file's path absolute (the program may change its
// directory) and says early when it cannot be written.
func runOutput(value string) (string, error) {
	if value == "" {
		return "", errors.New("name a file")
	}
	path, err := filepath.Abs(value)
	if err != nil {
		return "", err
	}
	dir, err := os.Stat(filepath.Dir(path))
	switch {
	case err != nil || !dir.IsDir():
		return "", fmt.Errorf("%s cannot be written: the folder %s does not exist: make it first", value, filepath.Dir(path))
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return "", fmt.Errorf("%s is a folder: name a file in it", value)
	}
	return path, nil
}

var runUnits = map[string]float64{
	"": 1, "B": 1,
	"K": 1 << 10, "KB": 1e3, "KIB": 1 << 10,
	"M": 1 << 20, "MB": 1e6, "MIB": 1 << 20,
	"G": 1 << 30, "GB": 1e9, "GIB": 1 << 30,
	"T": 1 << 40, "TB": 1e12, "TIB": 1 << 40,
}

// parseRunBytes reads a size such as 24GiB, 1.5GB, 512M or a plain number of bytes.
func parseRunBytes(value string) (int64, error) {
	bad := fmt.Errorf("%q is not a size: write bytes, or a size such as 24GiB or 512MiB", value)
	text := strings.TrimSpace(value)
	end := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(text)
	}
	unit, ok := runUnits[strings.ToUpper(strings.TrimSpace(text[end:]))]
	if !ok {
		return 0, bad
	}
	if n, err := strconv.ParseInt(text[:end], 10, 64); err == nil && unit == 1 {
		if n <= 0 {
			return 0, fmt.Errorf("%q is not above 0", value)
		}
		return n, nil // exact: a float64 is not, from 2^53 on
	}
	f, err := strconv.ParseFloat(text[:end], 64)
	if err != nil {
		return 0, bad
	}
	switch f *= unit; {
	case f < 1:
		return 0, fmt.Errorf("%q is not above 0", value)
	case f >= 1<<63:
		return 0, fmt.Errorf("%q is more than any machine has", value)
	}
	return int64(f), nil
}
