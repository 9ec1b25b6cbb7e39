package schedule

import "time"

// Train plays a training iteration on a batch of another size than the log's.
func (j *Job) Train(m *Model, batch float64) {
	w := &way{names: m.all(), batch: batch, time: batch}
	if batch != 1 {
		w.other = 3
	}
	j.play(j.cuts.forward, w)
	j.play(j.cuts.backward, w)
	w.time, w.other = 1, 0
	j.play(j.cuts.update, w)
}

// Evaluate plays the forward part alone.
func (j *Job) Evaluate(m *Model, batch float64) {
	j.play(short(j.cuts.forward), &way{names: m.all(), batch: batch, time: batch})
}

// Of a token, beside the whole batch.
const (
	tokenBatch = 1.0 / 64
	tokenTime  = 1.0 / 32
)

// Generate plays so many tokens: other kernels, short and on little memory, and what was attended to, which grows.
func (j *Job) Generate(m *Model, tokens, layers int, prompt, bytes int64) {
	part := short(j.cuts.forward)
	operations := 0
	for _, e := range part {
		if e.Kind != 0 && len(e.Accesses) > 0 {
			operations++
		}
	}
	each := max(1, operations/layers)
	kept := make([]uint64, layers)
	for token := range int64(tokens) {
		j.play(part, &way{names: m.all(), batch: tokenBatch, time: tokenTime, other: 1, after: func(operation int) {
			layer := operation / each
			if operation%each != each/2 || layer >= layers {
				return
			}
			joined := j.alloc((prompt + token) * bytes)
			if kept[layer] == 0 {
				j.launch(joinFunction, 4*time.Microsecond, joined)
			} else {
				j.launch(joinFunction, 4*time.Microsecond, joined, kept[layer])
				j.free(kept[layer])
			}
			kept[layer] = joined
		}})
	}
	for _, id := range kept {
		j.free(id)
	}
}

// Accumulate plays forward and backward; the gradients stay, and are added to those that there are.
func (j *Job) Accumulate(m *Model) {
	w := &way{names: m.all(), batch: 1, time: 1}
	j.play(j.cuts.forward, w)
	j.play(j.cuts.backward, w)
	j.release(w, j.cuts.gradient)
	for _, id := range sorted(j.cuts.gradient) {
		name, made := w.names[id]
		sum, there := m.gradients[id]
		switch {
		case !made:
		case !there:
			m.gradients[id] = name
		default:
			j.launch(addFunction, 5*time.Microsecond, sum, name)
			j.free(name)
		}
	}
}

// Update plays the optimizer on what was accumulated.
func (j *Job) Update(m *Model) {
	w := &way{names: m.all(), batch: 1, time: 1}
	for id, name := range m.gradients {
		w.names[id] = name
	}
	clear(m.gradients)
	j.play(j.cuts.update, w)
	j.release(w, nil)
}

// Adversary plays a training iteration of a generator, whose output another model judges: no update of that.
func (j *Job) Adversary(m, judge *Model) {
	w, v := &way{names: m.all(), batch: 1, time: 1}, &way{names: judge.all(), batch: 1, time: 1}
	j.play(j.cuts.forward, w)
	j.play(j.cuts.forward, v)
	j.play(j.cuts.backward, v)
	j.release(v, nil)
	j.play(j.cuts.backward, w)
	j.play(j.cuts.update, w)
}

// Drop plays a training iteration without some layers: so many of the operations in the middle of the forward part are
// of one, and as many of the backward part.
func (j *Job) Drop(m *Model, layers int, dropped func(layer int) bool) {
	w := &way{names: m.all(), batch: 1, time: 1}
	without := func(operations int, of func(layer int) int) func(int) bool {
		from, each := operations/20, (operations-operations/10)/layers
		return func(operation int) bool {
			layer := (operation - from) / each
			return operation >= from && layer < layers && dropped(of(layer))
		}
	}
	w.skip = without(count(j.cuts.forward), func(layer int) int { return layer })
	j.play(j.cuts.forward, w)
	w.skip, w.finished = without(count(j.cuts.backward), func(layer int) int { return layers - 1 - layer }), 0
	j.play(j.cuts.backward, w)
	w.skip = nil
	j.play(j.cuts.update, w)
	j.release(w, nil)
}
