package main

import (
	"regexp"
	"testing"
)

func TestVersion(t *testing.T) {
	real := version
	version = "v1.2.3"
	defer func() { version = real }()
	status, stdout, stderr := command(t, "version")
	if status != 0 || stderr != "" || !regexp.MustCompile(`^penstock v1\.2\.3 \(go1\.\S+ \w+/\w+\)\n$`).MatchString(stdout) {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}
