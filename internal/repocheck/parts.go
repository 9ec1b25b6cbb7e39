package repocheck

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
)

// parted is a package with parts that know nothing of each other, and of which its other files know only by an interface.
type parted struct {
	folder string
	// owns are, by what the names of a part's files begin with, the packages of this module that are for it alone.
	owns map[string]string
	// chooser is the file that makes the parts, and may know of all.
	chooser string
	// data are types of parts that all may use: they have no more than fields.
	data []string
}

var inParts = []parted{{
	folder:  "um/live",
	owns:    map[string]string{"paged": "um/managed", "explicit": "um/explicit"},
	chooser: "choose.go",
	data:    []string{"ExplicitStats"},
}}

// partOf is the part that a file is of, "" for what is common.
func (p parted) partOf(file string) string {
	for name := range p.owns {
		if file == name+".go" || strings.HasPrefix(file, name+"_") {
			return name
		}
	}
	return ""
}

// partFile is what the rule needs to know of one file.
type partFile struct {
	declares []string          // at the top
	methods  map[string]string // by type and name: the type that they are of
	uses     map[string]bool   // names that may be of other files
	imports  []string
}

func parsePart(file string, source []byte) (partFile, error) {
	tree, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
	if err != nil {
		return partFile{}, err
	}
	f := partFile{methods: map[string]string{}, uses: map[string]bool{}}
	for _, i := range tree.Imports {
		f.imports = append(f.imports, strings.Trim(i.Path.Value, `"`))
	}
	for _, d := range tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if of := strings.TrimSuffix(receiverOf(d), "."); of != "" {
				f.methods[of+"."+d.Name.Name] = of
			} else {
				f.declares = append(f.declares, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					f.declares = append(f.declares, s.Name.Name)
				case *ast.ValueSpec:
					for _, n := range s.Names {
						f.declares = append(f.declares, n.Name)
					}
				}
			}
		}
	}
	local := map[string]bool{} // parameters and variables of functions
	var walk func(n ast.Node) bool
	walk = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr: // what is selected is a name of X's
			ast.Inspect(n.X, walk)
			return false
		case *ast.KeyValueExpr: // as is a field that is given a value
			if _, ok := n.Key.(*ast.Ident); !ok {
				ast.Inspect(n.Key, walk)
			}
			ast.Inspect(n.Value, walk)
			return false
		case *ast.FuncDecl:
			if n.Recv != nil {
				ast.Inspect(n.Recv, walk)
			}
			ast.Inspect(n.Type, walk)
			if n.Body != nil {
				ast.Inspect(n.Body, walk)
			}
			return false
		case *ast.Field:
			for _, name := range n.Names {
				local[name.Name] = true
			}
			ast.Inspect(n.Type, walk)
			return false
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, x := range n.Lhs {
					if id, ok := x.(*ast.Ident); ok {
						local[id.Name] = true
					}
				}
			}
		case *ast.Ident:
			f.uses[n.Name] = true
		}
		return true
	}
	ast.Inspect(tree, walk)
	delete(f.uses, "_")
	for name := range local { // of the whole file: one that has the name of another file's hides that
		delete(f.uses, name)
	}
	return f, nil
}

// problems says where files of the package, by name and without tests, know of a part that they are not of.
func (p parted) problems(sources map[string][]byte) (all []string) {
	report := func(file, format string, args ...any) {
		all = append(all, path.Join(p.folder, file)+": "+fmt.Sprintf(format, args...))
	}
	files := map[string]partFile{}
	owner := map[string]string{} // of a name that a part declares
	seen := map[string]bool{}
	for name, source := range sources {
		f, err := parsePart(name, source)
		if err != nil {
			report(name, "%v", err)
			continue
		}
		files[name] = f
		if part := p.partOf(name); part != "" {
			seen[part] = true
			for _, d := range f.declares {
				owner[d] = part
			}
		}
	}
	for _, d := range p.data {
		delete(owner, d)
	}
	for part := range p.owns {
		if !seen[part] {
			report("", "no file of the part %s", part)
		}
	}
	for name, f := range files {
		part := p.partOf(name)
		for _, m := range slices.Sorted(maps.Keys(f.methods)) {
			if of := f.methods[m]; part != "" && owner[of] != part && !slices.Contains(p.data, of) {
				report(name, "%s is a method of what is not of the part %s", m, part)
			}
		}
		if name == p.chooser {
			continue
		}
		for _, used := range slices.Sorted(maps.Keys(f.uses)) {
			if of := owner[used]; of != "" && of != part {
				report(name, "uses %s of the part %s", used, of)
			}
		}
		for _, of := range slices.Sorted(maps.Keys(p.owns)) {
			if of != part && slices.Contains(f.imports, modulePath+"/"+p.owns[of]) {
				report(name, "imports %s, which is for the part %s", p.owns[of], of)
			}
		}
	}
	slices.Sort(all)
	return all
}
