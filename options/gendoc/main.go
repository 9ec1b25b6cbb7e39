// Command gendoc writes docs/options.md from the table of options. It runs
// under go generate, with the file's path as its argument. A test in package
// options fails when the file is stale, so forgetting to run it does not go
// unnoticed.
//
// Caveat: it overwrites the file without asking.
package main

import (
	"fmt"
	"os"

	"github.com/penstock-gpu/penstock/options"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "gendoc: name the file to write, as in gendoc docs/options.md")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], []byte(options.Markdown()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "gendoc:", err)
		os.Exit(1)
	}
}
