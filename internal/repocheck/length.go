package repocheck

import (
	"strings"
	"unicode"
)

// What a newcomer may be asked to read.
const (
	readmeLines = 150
	docsWords   = 12000
)

// words counts those of a text: what has a letter or a digit, so not the bars of a table.
func words(text []byte) (n int) {
	for _, field := range strings.Fields(string(text)) {
		if strings.ContainsFunc(field, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			n++
		}
	}
	return n
}
