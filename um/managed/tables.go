package managed

// learnTables feeds DeepUM's correlation tables with an operation's blocks.
func (r *planning) learnTables(signature uint64, x *op) {
	r.tables.Launch(signature)
	for _, t := range x.Tensors {
		for b := t.first; b < t.first+t.n; b++ {
			r.tables.Touch(uint64(b))
		}
	}
}

// foretell marks the tensors that the tables predict for the next kernels.
func (r *planning) foretell() {
	clear(r.foretold)
	r.tables.Chain(r.config.DegreeKernels, func(_ int, block uint64) bool {
		if t := r.arena.owner[block]; t != nil && !t.Freed {
			r.foretold[t.Slot] = true
		}
		return true
	})
}
