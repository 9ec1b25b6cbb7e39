package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/options"
)

// jobFlags are the doctor's for a job that is to come.
type jobFlags struct {
	job, params, dtype, optimizer, activations, budget string
	master, acceptDamaged                              bool
}

func (f *jobFlags) add(cmd *cobra.Command) {
	textFlag(cmd, &f.job, "job")
	textFlag(cmd, &f.params, "params")
	textFlag(cmd, &f.dtype, "dtype")
	textFlag(cmd, &f.optimizer, "optimizer")
	boolFlag(cmd, &f.master, "master-weights")
	textFlag(cmd, &f.activations, "activations")
	textFlag(cmd, &f.budget, "budget")
	boolFlag(cmd, &f.acceptDamaged, "accept-damaged")
}

// given says whether a job is asked about, and what is wrong with how.
func (f *jobFlags) given(cmd *cobra.Command) (bool, error) {
	asked := f.job != "" || f.params != ""
	for _, name := range []string{"dtype", "optimizer", "master-weights", "activations", "budget", "accept-damaged", "for"} {
		switch changed := cmd.Flags().Changed(name); {
		case changed && !asked && name != "for":
			return false, fmt.Errorf("--%s is of a job: give --job RECORDING or --params 8e9 as well", name)
		case changed && asked && name == "for":
			return false, errors.New("--for asks about this machine, --job and --params about a job: give one of them")
		case changed && f.job != "" && name != "budget" && name != "accept-damaged":
			return false, fmt.Errorf("--%s is in the recording already: leave it out with --job", name)
		}
	}
	return asked, nil
}

// model reads what was said of a model.
func (f *jobFlags) model() (m model, err error) {
	if f.params != "" {
		if m.parameters, err = parseParameters(f.params); err != nil {
			return m, err
		}
	}
	m.dtype, m.optimizer, m.master, m.activations = f.dtype, f.optimizer, f.master, -1
	switch {
	case !slices.Contains(dtypes, m.dtype):
		return m, fmt.Errorf("--dtype: %q is unknown: choose one of %s", shorten(m.dtype), strings.Join(dtypes, ", "))
	case !slices.Contains(optimizers, m.optimizer):
		return m, fmt.Errorf("--optimizer: %q is unknown: choose one of %s", shorten(m.optimizer), strings.Join(optimizers, ", "))
	case m.master && m.weights() == 4:
		return m, fmt.Errorf("--master-weights: those of %s have 4 bytes already: give --dtype bf16 or fp16", m.dtype)
	}
	if f.activations != "" {
		if m.activations, err = options.ParseBytes(f.activations); err != nil {
			return m, fmt.Errorf("--activations: %w", err)
		}
		if m.activations > mostBytes {
			return m, fmt.Errorf("--activations: %q is more than any machine has", shorten(f.activations))
		}
	}
	return m, nil
}

// needs looks at the job and at the machine.
func (f *jobFlags) needs(ctx context.Context, m doctorMachine, notes io.Writer) (*jobNeeds, error) {
	said, err := f.model()
	if err != nil {
		return nil, err
	}
	var budget int64
	if f.budget != "" {
		if budget, err = options.ParseBytes(f.budget); err != nil {
			return nil, fmt.Errorf("--budget: %w", err)
		}
		if budget == 0 {
			return nil, errors.New("--budget: nothing runs in 0 bytes: give more, such as 24GiB")
		}
	}
	var n *jobNeeds
	if f.job != "" {
		tr, err := loadTrace(ctx, f.job)
		if err := intact(tr, err, f.acceptDamaged, notes); err != nil {
			return nil, err
		}
		if n, err = needsOfRecording(tr, said.parameters); err != nil {
			return nil, err
		}
	} else {
		n = needsOfModel(said)
	}
	if s, err := m.probe(0); err == nil {
		n.Card, n.CardBytes = s.Info.Name, s.Info.TotalBytes
	}
	pins, err := m.pinning()
	if err != nil {
		return nil, fmt.Errorf("cannot tell how much host memory there is: %w", err)
	}
	n.HostAvailableBytes, n.HostLimitedBy = pins.share(), pins.LimitedBy
	n.settle(budget)
	n.judge()
	if f.job == "" && n.WithMarginBytes > n.HostAvailableBytes {
		n.Do = append(said.smaller(n), n.Do...)
	}
	return n, nil
}

// writeNeeds says it to people.
func writeNeeds(w io.Writer, n *jobNeeds) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", n.Job)
	columns := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(name string, bytes int64, note string) {
		fmt.Fprintf(columns, "  %s\t%s\t%s\n", name, size.Text(bytes), note)
	}
	for _, p := range n.Parts {
		note := ""
		if p.PerParameter > 0 {
			note = fmt.Sprintf("%.4g bytes a parameter", p.PerParameter)
		}
		row(p.Name, p.Bytes, note)
	}
	perBillion := func(note string, gib float64) string {
		if n.Parameters == 0 {
			return note
		}
		return fmt.Sprintf("%s; %.1f GiB for each 1 B parameters", note, gib)
	}
	row("in all, at its peak", n.PagedBytes, perBillion("in the engine's pages", n.GiBPerBillion))
	if n.LeastBudgetBytes > 0 {
		row("smallest budget", n.LeastBudgetBytes, "the largest launch touches so much")
	}
	if n.BudgetBytes > 0 {
		row("budget", n.BudgetBytes, "on the card")
		row("in host memory", n.HostBytes, "what does not fit the budget")
		if n.HostBytes > 0 {
			row("with a margin", n.WithMarginBytes, perBillion("for moves under way and workspaces", n.HostGiBPerBillion))
			row("pinned, at most", n.PinnedBytes, "with what is kept ready; --host-budget sets a limit")
		}
	}
	if n.CardBytes > 0 {
		row("this card has", n.CardBytes, n.Card)
	}
	row("this host has", n.HostAvailableBytes, n.HostLimitedBy)
	columns.Flush()
	if len(n.Unknown) > 0 {
		fmt.Fprintf(&b, "Not counted: %s.\n", strings.Join(n.Unknown, "; "))
	}
	fmt.Fprintf(&b, "\n%s%s.\n", strings.ToUpper(n.Verdict[:1]), n.Verdict[1:])
	for _, d := range n.Do {
		fmt.Fprintf(&b, "  -> %s\n", d)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
