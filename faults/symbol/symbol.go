// Package symbol makes kernels' names readable. Recordings keep them mangled, and
// programs are given them so; people are shown what Readable makes of them.
//
// Invariant: whatever the name, the answer is not longer to make than a few
// milliseconds and not empty unless the name is; what is no mangled name is
// answered as it is.
//
// Caveat: two kernels that differ in the types of parameters, or in which of a
// function's lambdas they run, may have the same readable name.
package symbol

import (
	"regexp"
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// noise are parts of kernels' names that tell nothing about which kernel it is.
var (
	noise   = strings.NewReplacer("(anonymous namespace)::", "", "at::native::", "", "at::", "", "c10::", "", "std::", "")
	lambdas = regexp.MustCompile(`(::\{lambda#?\d*\}|::operator( const)?\b)+`)
)

// mostMangled is the longest name that is demangled: real ones have at most a few thousand bytes.
const mostMangled = 8 << 10

// Readable is a kernel's name as people read it: demangled, and without the
// parameters of functions, the lambdas that template kernels are made of and the
// namespaces that all have. Different kernels may have the same; programs are
// given the name as it was recorded.
func Readable(name string) string {
	if !strings.HasPrefix(name, "_Z") && !strings.HasPrefix(name, "_R") || len(name) > mostMangled {
		return name
	}
	s, err := demangle.ToString(name, demangle.NoClones, demangle.MaxLength(14))
	if err != nil {
		return name
	}
	s = noise.Replace(strings.TrimPrefix(s, "void "))
	s = lambdas.ReplaceAllString(withoutParentheses(s), "")
	s = strings.TrimSpace(strings.ReplaceAll(s, " >", ">"))
	if s == "" {
		return name
	}
	return s
}

// withoutParentheses leaves out what stands in parentheses, however deep.
func withoutParentheses(s string) string {
	if !strings.Contains(s, "(") {
		return s
	}
	var b strings.Builder
	depth := 0
	for _, r := range s {
		switch {
		case r == '(':
			depth++
		case r == ')' && depth > 0:
			depth--
		case depth == 0:
			b.WriteRune(r)
		}
	}
	return b.String()
}
