package repocheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
)

// architecture is the page that walks through the code: what it names is there.
const architecture = "docs/architecture.md"

// namedThing is a file or folder, or a name in a file, as such a page has it: `um/live/live.go:Live.Malloc`.
var namedThing = regexp.MustCompile("`([\\w.-]+(?:/[\\w.-]+)+)(?::([\\w.]+))?`")

// thing is one of them.
type thing struct{ file, name string }

func thingsIn(page []byte) (all []thing) {
	for _, m := range namedThing.FindAllSubmatch(page, -1) {
		all = append(all, thing{string(m[1]), string(m[2])})
	}
	return all
}

// declares says whether a source file declares a name: of Go a function, type or Type.Method, of C a function or macro.
func declares(file string, source []byte, name string) bool {
	if path.Ext(file) != ".go" {
		n := regexp.QuoteMeta(name)
		declared := regexp.MustCompile(`(?m)^(?:#define ` + n + `\b|[A-Za-z_][^;\n(]*\b` + n + `\([^;\n]*$)`)
		return declared.Match(source)
	}
	tree, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	for _, d := range tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if receiverOf(d)+d.Name.Name == name {
				return true
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if t, ok := s.(*ast.TypeSpec); ok && t.Name.Name == name {
					return true
				}
			}
		}
	}
	return false
}

// receiverOf is the type that a method is of, with a dot; "" for a function.
func receiverOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	switch generic := of.(type) {
	case *ast.IndexExpr:
		of = generic.X
	case *ast.IndexListExpr:
		of = generic.X
	}
	if name, ok := of.(*ast.Ident); ok {
		return name.Name + "."
	}
	return ""
}
