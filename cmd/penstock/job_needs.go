package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/explicit/hostpool"
)

// jobNeeds is the memory that a job will need under the explicit engine, and whether this machine has it.
type jobNeeds struct {
	Job        string `json:"job"` // the recording, or what was said of the model
	Parameters int64  `json:"parameters,omitempty"`
	// Parts are what PeakBytes is made of, where that is known.
	Parts     []jobPart `json:"parts,omitempty"`
	PeakBytes int64     `json:"peak_bytes"`
	// PagedBytes is the same in whole pages, as the engine holds it.
	PagedBytes int64 `json:"paged_peak_bytes"`
	// LeastBudgetBytes is what the largest launch touches: with less the job cannot run. 0: not known.
	LeastBudgetBytes int64    `json:"least_budget_bytes,omitempty"`
	Unknown          []string `json:"not_counted,omitempty"`
	// ActivationsUnknown says that a part of what will be needed is not known.
	ActivationsUnknown bool `json:"activations_not_known,omitempty"`

	BudgetBytes int64 `json:"budget_bytes,omitempty"` // 0: neither given nor known from a card
	// HostBytes will lie in host memory at that budget at the peak, and WithMarginBytes with what the engine needs besides.
	HostBytes       int64 `json:"host_bytes"`
	WithMarginBytes int64 `json:"host_with_margin_bytes"`
	// PinnedBytes is the most that will be pinned, with what is kept ready in advance.
	PinnedBytes int64 `json:"host_pinned_bytes_at_most"`
	// GiBPerBillion and HostGiBPerBillion are PagedBytes and WithMarginBytes for each 1e9 parameters.
	GiBPerBillion     float64 `json:"gib_per_billion_parameters,omitempty"`
	HostGiBPerBillion float64 `json:"host_gib_per_billion_parameters,omitempty"`

	Card               string `json:"card,omitempty"`
	CardBytes          int64  `json:"card_bytes"` // 0: there is none
	HostAvailableBytes int64  `json:"host_available_bytes"`
	HostLimitedBy      string `json:"host_limited_by"`

	Enough  bool     `json:"enough"` // this machine has what is known to be needed
	Verdict string   `json:"verdict"`
	Do      []string `json:"do,omitempty"` // what a machine with too little can do
}

// jobPart is one kind of memory of a job.
type jobPart struct {
	Name         string  `json:"name"`
	PerParameter float64 `json:"bytes_per_parameter,omitempty"`
	Bytes        int64   `json:"bytes"`
}

// hostMargin is what host memory needs besides what does not fit the budget: moves under way lie on both sides, and the
// budget holds memory that the recording does not have, such as workspaces. Of ten runs of four jobs (GPT-2 medium, Llama
// 1.1 B, a mixture of experts, ResNet-152; bench/results/turns-whole-after-*.json and explicit-cpu-turns-*.json, their
// host_need_bytes against this computation of their recordings) all needed between 0.01 and 0.70 GiB of it, and none
// pinned more than is foretold.
const hostMargin = 1 << 30

// mostBytes is more than any machine has, and small enough to be added up.
const mostBytes = 1 << 58

// pagedPeak is the largest sum of live allocations as the explicit engine holds them: large ones in whole pages.
func pagedPeak(t *trace.Trace) (peak int64) {
	live := map[uint64]int64{}
	var sum int64
	for i := range t.Events {
		switch e := &t.Events[i]; e.Kind {
		case trace.KindAlloc:
			bytes := min(e.Bytes, mostBytes)
			if bytes >= um.SmallBytes {
				bytes = explicit.WholePages(bytes)
			}
			live[e.Alloc] = bytes
			if sum += bytes; sum > mostBytes {
				return mostBytes
			}
			peak = max(peak, sum)
		case trace.KindFree:
			sum -= live[e.Alloc]
			delete(live, e.Alloc)
		}
	}
	return peak
}

// needsOfRecording is what a recorded job needs. Parameters 0 are not known.
func needsOfRecording(t *trace.Trace, parameters int64) (*jobNeeds, error) {
	n := &jobNeeds{Job: t.Name, Parameters: parameters, PeakBytes: t.PeakLiveBytes(), PagedBytes: pagedPeak(t)}
	if n.PeakBytes == 0 {
		return nil, fmt.Errorf("trace %s allocates nothing, so there is nothing to say: record a training run", t.Name)
	}
	if largest := t.LargestLaunch(); largest.Event >= 0 {
		n.LeastBudgetBytes = largest.Bytes
	}
	n.Unknown = []string{"the CUDA context, which is outside the budget"}
	return n, nil
}

// The choices of --dtype and --optimizer.
const (
	dtypeFP32 = "fp32"
	dtypeAMP  = "amp"
	dtypeBF16 = "bf16"
	dtypeFP16 = "fp16"

	optimizerAdamW    = "adamw"
	optimizerAdam8bit = "adam8bit"
	optimizerSGD      = "sgd"
	optimizerMomentum = "sgd-momentum"
)

var (
	dtypes     = []string{dtypeFP32, dtypeAMP, dtypeBF16, dtypeFP16}
	optimizers = []string{optimizerAdamW, optimizerAdam8bit, optimizerSGD, optimizerMomentum}
)

// A state of 8 bits has a scale of 4 bytes for each block of 256, in bitsandbytes as in torchao.
const (
	bytesOf8bit = 1 + 4.0/blockOf8bit
	blockOf8bit = 256
)

// model is what was said of a model.
type model struct {
	parameters  int64
	dtype       string
	optimizer   string
	master      bool  // fp32 weights beside those of 16 bits
	activations int64 // -1: not known
}

// weights is how many bytes a weight has.
func (m model) weights() float64 {
	if m.dtype == dtypeBF16 || m.dtype == dtypeFP16 {
		return 2
	}
	return 4 // under autocast, too: only what is computed is of 16 bits
}

// String says it shortly.
func (m model) String() string {
	text := fmt.Sprintf("%s parameters, %s, %s", billions(m.parameters), m.dtype, m.optimizer)
	if m.master {
		text += ", master weights"
	}
	return text
}

func billions(n int64) string {
	for _, u := range []struct {
		name string
		of   float64
	}{{"B", 1e9}, {"M", 1e6}, {"K", 1e3}} {
		if float64(n) >= u.of {
			return strconv.FormatFloat(float64(n)/u.of, 'f', -1, 64) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// parts are what lies in memory, as if all of it did at once: gradients are whole as activations end, but where they are
// accumulated. PyTorch's optimizers keep their states in the dtype of what they update, which is the master weights
// where there are any.
func (m model) parts() []jobPart {
	weight, updated := m.weights(), m.weights()
	all := []jobPart{{Name: "weights", PerParameter: weight}, {Name: "gradients", PerParameter: weight}}
	if m.master {
		updated = 4
		all = append(all, jobPart{Name: "master weights", PerParameter: updated})
	}
	switch m.optimizer {
	case optimizerAdamW:
		all = append(all, jobPart{Name: "two moments", PerParameter: 2 * updated})
	case optimizerAdam8bit:
		all = append(all, jobPart{Name: "two moments of 8 bits", PerParameter: 2 * bytesOf8bit})
	case optimizerMomentum:
		all = append(all, jobPart{Name: "momentum", PerParameter: updated})
	}
	for i := range all {
		all[i].Bytes = int64(math.Ceil(all[i].PerParameter * float64(m.parameters)))
	}
	if m.activations > 0 {
		all = append(all, jobPart{Name: "activations", Bytes: m.activations})
	}
	return all
}

// needsOfModel is what a model needs of which only the size is known.
func needsOfModel(m model) *jobNeeds {
	n := &jobNeeds{Job: m.String(), Parameters: m.parameters, Parts: m.parts()}
	for _, p := range n.Parts {
		n.PeakBytes += p.Bytes
	}
	n.PagedBytes = explicit.WholePages(n.PeakBytes) // tensors are not known: those of weights fill their pages well
	if n.ActivationsUnknown = m.activations < 0; n.ActivationsUnknown {
		n.Unknown = append(n.Unknown, "activations, which depend on the batch (--activations, or --job with a recording)")
	}
	n.Unknown = append(n.Unknown, "what the largest launch touches: the budget has to hold it", "the CUDA context, which is outside the budget")
	return n
}

// settle finds what lies in host memory at a budget; 0 is what the card has.
func (n *jobNeeds) settle(budget int64) {
	if budget == 0 {
		budget = n.CardBytes
	}
	n.BudgetBytes = budget
	if budget > 0 && n.PagedBytes > budget {
		n.HostBytes = n.PagedBytes - budget
		n.WithMarginBytes = n.HostBytes + hostMargin
		n.PinnedBytes = hostpool.Config{BudgetBytes: max(n.HostAvailableBytes, n.WithMarginBytes)}.MostPinned(n.WithMarginBytes)
	}
	if n.Parameters > 0 {
		each := float64(n.Parameters) / 1e9 * (1 << 30)
		n.GiBPerBillion, n.HostGiBPerBillion = float64(n.PagedBytes)/each, float64(n.WithMarginBytes)/each
	}
}

// judge says whether this machine has it.
func (n *jobNeeds) judge() {
	say := func(enough bool, format string, args ...any) {
		n.Enough, n.Verdict = enough, fmt.Sprintf(format, args...)
	}
	short := n.WithMarginBytes - n.HostAvailableBytes
	switch {
	case n.BudgetBytes == 0:
		say(false, "no card was found here: give --budget to hear what would lie in host memory")
	case n.BudgetBytes < n.LeastBudgetBytes:
		say(false, "one launch touches %s, more than the budget of %s: it cannot run so", size.Text(n.LeastBudgetBytes), size.Text(n.BudgetBytes))
		n.Do = append(n.Do, fmt.Sprintf("give --budget %d or more", n.LeastBudgetBytes))
	case n.CardBytes > 0 && n.BudgetBytes > n.CardBytes:
		say(false, "the budget of %s is more than the card has, %s", size.Text(n.BudgetBytes), size.Text(n.CardBytes))
		n.Do = append(n.Do, fmt.Sprintf("give --budget %dMiB or less", n.CardBytes>>20))
	case short > 0:
		say(false, "host memory is too small: %s are needed, and %s can be had", size.Text(n.WithMarginBytes), size.Text(n.HostAvailableBytes))
	case n.CardBytes == 0:
		say(false, "host memory is enough, but no card was found here")
	case n.HostBytes == 0:
		say(true, "all of it fits the budget: nothing has to leave the card")
	default:
		say(true, "it can run here at this budget")
	}
	if n.Enough && n.ActivationsUnknown {
		n.Verdict += ", if activations fit as well"
	}
	if short > 0 {
		n.remedies(short)
	}
}

// remedies are what a machine with too little host memory can do.
func (n *jobNeeds) remedies(short int64) {
	if more := n.BudgetBytes + short; n.CardBytes >= more {
		n.Do = append(n.Do, fmt.Sprintf("give --budget %dMiB: the card has so much, and the rest then fits host memory", (more+1<<20-1)>>20))
	}
	n.Do = append(n.Do,
		"end other programs that hold host memory, or raise the container's limit",
		"hold less for each parameter: weights and states in bf16, an optimizer with states of 8 bits, LoRA",
		"if activations are large, use the model's checkpointing switch or a smaller batch",
		"share the states between several cards, with FSDP")
}

// smaller are the ways to hold less for each parameter with which a model would fit this machine, the least change first.
func (m model) smaller(n *jobNeeds) (all []string) {
	for _, other := range []model{
		{m.parameters, m.dtype, optimizerAdam8bit, m.master, m.activations},
		{m.parameters, dtypeBF16, m.optimizer, false, m.activations},
		{m.parameters, dtypeBF16, optimizerAdam8bit, false, m.activations},
	} {
		x := needsOfModel(other)
		x.HostAvailableBytes = n.HostAvailableBytes
		x.settle(n.BudgetBytes)
		text := fmt.Sprintf("%s would need %s of host memory", other, size.Text(x.WithMarginBytes))
		if x.PagedBytes < n.PagedBytes && x.WithMarginBytes <= n.HostAvailableBytes && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// parseParameters reads a number of parameters, such as 8e9, 8B or 350M.
func parseParameters(text string) (int64, error) {
	bad := fmt.Errorf("--params: %q is no number of parameters: write one such as 8e9, 8B or 350M", shorten(text))
	factor, digits := 1.0, strings.ToUpper(strings.TrimSpace(text))
	for suffix, of := range map[string]float64{"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12} {
		if rest, ok := strings.CutSuffix(digits, suffix); ok {
			factor, digits = of, rest
			break
		}
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || strings.ContainsAny(digits, "XPN_") {
		return 0, bad
	}
	const most = 1e14 // which is a petabyte of states
	if n *= factor; !(n >= 1 && n <= most) {
		return 0, bad
	}
	return int64(math.Round(n)), nil
}

// shorten keeps what somebody typed on one line.
func shorten(text string) string {
	const most = 40
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}
