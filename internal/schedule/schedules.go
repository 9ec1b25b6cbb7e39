package schedule

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"

	"github.com/penstock-gpu/penstock/trace"
)

// release frees what a part has left behind, but for some.
func (j *Job) release(w *way, but map[uint64]bool) {
	for _, id := range sorted(w.names) {
		if !j.cuts.staying[id] && !but[id] {
			j.free(w.names[id])
			delete(w.names, id)
		}
	}
}

func sorted[T any](of map[uint64]T) []uint64 { return slices.Sorted(maps.Keys(of)) }

// count is how many operations a part has.
func count(part []trace.Event) (n int) {
	for _, e := range part {
		if e.Kind == trace.KindLaunch || e.Kind == trace.KindCopy {
			n++
		}
	}
	return n
}

const (
	layers      = 24
	tokens      = 32
	promptBytes = 64 << 10 // that a token adds to what a layer attends to
)

// schedules are jobs by name.
var schedules = map[string]func(j *Job){
	"train": func(j *Job) { // one program: what the others are compared with
		m := j.Model()
		for range 12 {
			j.train(m, 1)
		}
	},
	"train-eval": func(j *Job) {
		m := j.Model()
		for range 4 {
			for range 6 {
				j.train(m, 1)
			}
			j.evaluate(m, 3)
		}
	},
	"train-eval-uneven": func(j *Job) { // no two rounds are as long
		m := j.Model()
		for _, n := range []int{4, 7, 3, 6, 5} {
			for range n {
				j.train(m, 1)
			}
			j.evaluate(m, 1+n/2)
		}
	},
	"short-batch": func(j *Job) {
		m := j.Model()
		for range 4 {
			for range 5 {
				j.train(m, 1)
			}
			j.train(m, 0.5)
		}
	},
	"rl": func(j *Job) {
		m := j.Model()
		for range 6 {
			j.Iteration("generate")
			j.Generate(m, tokens, layers, tokens, promptBytes)
			j.train(m, 1)
		}
	},
	"gan": func(j *Job) {
		generator, judge := j.Model(), j.Model()
		for range 7 {
			j.Iteration("discriminator")
			j.Evaluate(generator, 1)
			j.Train(judge, 1)
			j.Iteration("generator")
			j.Adversary(generator, judge)
		}
	},
	"two-models": func(j *Job) {
		models := []*Model{j.Model(), j.Model()}
		for i := range 14 {
			j.Iteration(fmt.Sprint("model ", i%2))
			j.Train(models[i%2], 1)
		}
	},
	"accumulate": func(j *Job) {
		m := j.Model()
		for i := range 24 {
			last := i%4 == 3
			name := "accumulate"
			if last {
				name = "accumulate, update"
			}
			j.Iteration(name)
			j.Accumulate(m)
			if last {
				j.Update(m)
			}
		}
	},
	"layer-drop": func(j *Job) {
		m, rng := j.Model(), rand.New(rand.NewSource(1))
		for range 16 {
			var out [layers]bool
			for i := range out {
				out[i] = rng.Float64() < 0.1
			}
			j.Iteration("train")
			j.Drop(m, layers, func(layer int) bool { return out[layer] })
		}
	},
}

func (j *Job) train(m *Model, batch float64) {
	name := "train"
	if batch != 1 {
		name = "short batch"
	}
	j.Iteration(name)
	j.Train(m, batch)
}

func (j *Job) evaluate(m *Model, n int) {
	for range n {
		j.Iteration("evaluate")
		j.Evaluate(m, 1)
	}
}

// Names are those of the schedules.
func Names() []string { return slices.Sorted(maps.Keys(schedules)) }

// New makes a recording of a schedule from a log of training, and says which program each iteration runs.
func New(name string, log *trace.Trace) (t *trace.Trace, programs []string, err error) {
	run, known := schedules[name]
	if !known {
		return nil, nil, fmt.Errorf("no schedule is called %q: choose one of %v", name, Names())
	}
	c, err := Cut(log)
	if err != nil {
		return nil, nil, err
	}
	j := NewJob(c, name)
	run(j)
	t = j.Trace()
	if err := t.Validate(); err != nil {
		return nil, nil, err
	}
	return t, j.Labels, nil
}
