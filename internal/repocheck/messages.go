package repocheck

import (
	"regexp"
	"strings"
)

// troubleshooting is the page that has each message with its cause and what to do.
const troubleshooting = "docs/troubleshooting.md"

var (
	// messageRow is a row of one of its tables.
	messageRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
	// logged is what the engine says while a job runs.
	logged = regexp.MustCompile(`\b(?:log|l)\.(?:Warn|Error)\("((?:[^"\\]|\\.)*)"`)
	// warned is a warning of the verdict, a Go literal that is appended to the list of them.
	warned = regexp.MustCompile(`\bw = append\(w, (?:fmt\.Sprintf\()?"((?:[^"\\]|\\.)*)"`)
)

// messagesIn are the messages of the page, each as the pieces that do not vary.
func messagesIn(page []byte) (all [][]string) {
	for _, m := range messageRow.FindAllSubmatch(page, -1) {
		var pieces []string
		for _, piece := range strings.Split(string(m[1]), "…") {
			if piece = strings.TrimSpace(piece); piece != "" {
				pieces = append(pieces, piece)
			}
		}
		all = append(all, pieces)
	}
	return all
}

// said are the messages of a source file that the page has to have: what is logged for people, and the verdict's warnings.
func said(source []byte) (all []string) {
	for _, pattern := range []*regexp.Regexp{logged, warned} {
		for _, m := range pattern.FindAllSubmatch(source, -1) {
			all = append(all, string(m[1]))
		}
	}
	return all
}

// explains says whether an entry of the page is about a message: all its pieces stand in it, in order.
func explains(pieces []string, message string) bool {
	at := 0
	for _, piece := range pieces {
		i := strings.Index(message[at:], piece)
		if i < 0 {
			return false
		}
		at += i + len(piece)
	}
	return len(pieces) > 0
}

// isTestFile says whether a source is no part of what users run: a test, or what tests and benchmarks are made of.
func isTestFile(file string) bool {
	for _, part := range []string{"_test.go", "/test_", "/testdata/", "bench/", "cabi/stub/", "python/tests/", "internal/repocheck/"} {
		if strings.Contains(file, part) {
			return true
		}
	}
	return false
}
