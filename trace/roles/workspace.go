package roles

import (
	"strings"

	"github.com/penstock-gpu/penstock/trace"
)

// What makes an allocation a library's workspace.
const (
	workspaceFills     = 20 // more fills of a small part of it than this,
	workspaceFillShare = 50 // of less than so much of it,
	workspaceTouches   = 200
	workspacePercent   = 70 // or so many touches, by matrix products and copies so often, of what is not freed before the end,
	splitTouches       = 60 // or so many touches and writes around kernels that add up the parts of a product
	splitWrites        = 40
)

// findWorkspaces marks the workspaces of matrix libraries. Their contents mean something only from one launch to the next.
func (r *Roles) findWorkspaces(t *trace.Trace) {
	n := len(r.Tensors)
	touches, writes, fills, products := make([]int, n), make([]int, n), make([]int, n), make([]int, n)
	parts := make([]bool, n)
	kind := map[uint32]Function{}
	adds := map[uint32]bool{}
	for _, e := range t.Events {
		if e.Kind == trace.KindFunction {
			kind[e.Function], adds[e.Function] = OfFunction(e.Name), strings.Contains(e.Name, "splitKreduce")
		}
	}
	for _, o := range r.Operations {
		e := &t.Events[o.Event]
		launch := e.Kind == trace.KindLaunch
		for _, x := range o.Operands {
			touches[x.Tensor]++
			if x.Writes {
				writes[x.Tensor]++
			}
			if !launch && e.Copy == trace.CopyFill && x.Writes && e.Bytes*workspaceFillShare < r.Tensors[x.Tensor].Bytes {
				fills[x.Tensor]++
			}
			if !launch || kind[e.Function].Matrix {
				products[x.Tensor]++
			}
			parts[x.Tensor] = parts[x.Tensor] || launch && adds[e.Function]
		}
	}
	end := len(r.Operations)
	if iterations := t.Iterations(); len(iterations) > 0 {
		end = r.From(iterations[len(iterations)-1].End)
	}
	for i := range r.Tensors {
		stays := r.Tensors[i].Death >= end
		r.Tensors[i].Workspace = fills[i] > workspaceFills ||
			stays && touches[i] >= workspaceTouches && products[i]*100 > touches[i]*workspacePercent ||
			stays && parts[i] && touches[i] > splitTouches && writes[i] > splitWrites
	}
}
